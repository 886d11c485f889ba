"""The formats of a drawing, by the ending of a file name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ...common import files
from ...errors import InputError
from ..elements import Drawing
from .dot import to_dot
from .graphml import to_graphml
from .html import to_html
from .mermaid import to_mermaid
from .png import to_png
from .svg import to_svg

Render = Callable[[Drawing, "int | None"], "str | bytes"]
#: Ending of a file name -> renderer. ``depth`` is for static formats.
FORMATS: dict[str, Render] = {
    "html": lambda drawing, depth: to_html(drawing.to_dict()),
    "svg": to_svg,
    "png": to_png,
    "dot": to_dot,
    "mmd": to_mermaid,
    "graphml": lambda drawing, depth: to_graphml(drawing),
    "json": lambda drawing, depth: drawing.to_json() + "\n",
}


def render(drawing: Drawing, format: str, depth: int | None = None) -> bytes:
    """A drawing in one of :data:`FORMATS`.

    Raises:
        InputError: the format does not exist.
        MissingPackageError: the format needs the ``viz`` extra.
    """
    if format not in FORMATS:
        raise InputError(
            f"{format!r} is not a drawing format", remedy=f"use one of {', '.join(FORMATS)}"
        )
    content = FORMATS[format](drawing, depth)
    return content if isinstance(content, bytes) else content.encode()


def save(
    drawing: Drawing,
    path: str | os.PathLike[str],
    format: str | None = None,
    depth: int | None = None,
) -> Path:
    """Write a drawing to a file, by default in the format of its ending; returns the path.

    Raises:
        InputError: the ending is not a format, or the file cannot be written.
    """
    # Rendered completely before the file is opened: a failure leaves an existing file intact.
    target = Path(path)
    write(render(drawing, format or target.suffix.removeprefix(".").lower(), depth), target)
    return target


def write(content: bytes, target: Path) -> None:
    """Write the result of :func:`render` to a file.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        files.write_bytes(target, content)
    except OSError as error:
        raise InputError(
            f"{target} cannot be written: {error.strerror}",
            remedy="choose a file in an existing, writable directory",
        ) from error
