"""What `mkdocs build` does besides.

A link out of docs/, such as `../benchmarks/README.md`, works where the repository is browsed. Here
the file behind it is added to the site below `repository/`, and the link leads there. A paragraph
that is nothing but a link to a script is followed by the script.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
ADDED = "repository"
PAGES = f"{ADDED}/pages"  # apart, for results/zoo.md becomes results/zoo.html itself
PATTERNS = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    *(f"benchmarks/results/*.{kind}" for kind in ("md", "csv", "html")),
)
_SCRIPT = re.compile(r"^\[\S+\]\((\S+\.py)\)$", re.MULTILINE)
_LINK = re.compile(r"(\]\()([^)#:\s]+)([^)]*\))")


def on_files(files: Files, *, config: Any) -> Files:
    """Add what lies outside of docs/."""
    for pattern in PATTERNS:
        for path in sorted(ROOT.glob(pattern)):
            name = _on_site(path.relative_to(ROOT).as_posix())
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Scripts, and links to files of the repository, as seen from where the page is on the site."""
    folder = Path(page.file.abs_src_path).parent
    markdown = _SCRIPT.sub(lambda m: f"{m[0]}\n\n{_code(folder / m[1])}", markdown)
    here = dirname(_in_repository(page.file.src_uri))

    def lead(match: re.Match[str]) -> str:
        target = normpath(f"{here}/{match[2]}" if here else match[2])
        site = _on_site(target)
        if files.get_file_from_path(site) is None:
            return match[0]  # MkDocs says what is wrong with it
        return f"{match[1]}{relpath(site, dirname(page.file.src_uri) or '.')}{match[3]}"

    return _LINK.sub(lead, markdown)


def _on_site(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{PAGES if path.endswith('.html') else ADDED}/{path}"


def _in_repository(uri: str) -> str:
    return uri.removeprefix(f"{ADDED}/") if uri.startswith(f"{ADDED}/") else f"docs/{uri}"


def _code(script: Path) -> str:
    return f"```python\n{script.read_text()}```\n"
