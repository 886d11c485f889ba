"""HTML: an interactive page with the drawing, its scripts and the layout library in one file."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "page"

# All files share one scope, so a file comes after those whose constants it uses while loading.
SCRIPTS = (
    "dom numbers tree fold colours state view sizes scope cuts columns elk layout "
    "icons parts boxes edges render viewport motion minimap highlight tasks heatmap "
    "fields details overview search keyboard links export main"
).split()


def to_html(drawing: dict[str, Any]) -> str:
    """A self-contained page, which opens from a disk or an e-mail.

    Example:
        >>> page = to_html({"title": "a </script> b", "modules": [], "nodes": []})
        >>> page.count("</script>"), "a </script> b" in page
        (3, False)
    """
    # Their digests are in the policy, so both must be final before it is written.
    style, script = _style(), _script()
    parts = {
        "title": _text(drawing.get("title") or "model"),
        "policy": _policy(style, script),
        "style": style,
        "script": script,
        "drawing": _data(drawing),
        "library": _library(),
    }
    # A single pass: a placeholder inside the drawing's data is never replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _read("page.html"))


def _text(value: object) -> str:
    return escape(str(value)).encode("ascii", "xmlcharrefreplace").decode()


def _data(drawing: dict[str, Any]) -> str:
    """JSON without characters that could end the surrounding script element."""
    text = json.dumps(drawing, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(style: str, script: str) -> str:
    """A content security policy that allows this style, this script, and the library's blob."""
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)} blob:; "
        "worker-src blob:; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@cache
def _read(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    return _read("page.css") + _read("graph.css")


@cache
def _script() -> str:
    body = "\n".join(_read(f"js/{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{_plain(body)}\n}})();\n'


def _plain(script: str) -> str:
    """Escape non-ASCII characters: with a wrong encoding the script would not match its digest."""
    return re.sub(r"[^\x00-\x7f]", lambda found: f"\\u{ord(found[0]):04x}", script)


@cache
def _library() -> str:
    source = (PAGE / "vendor" / "elk-worker.min.js").read_bytes()
    # mtime=0: the same page from the same drawing, bit for bit
    return b64encode(gzip.compress(source, compresslevel=9, mtime=0)).decode()
