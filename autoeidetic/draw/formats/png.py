"""PNG: the SVG picture, rasterised."""

from __future__ import annotations

import re

from ...errors import MissingPackageError
from ..elements import Drawing
from .svg import to_svg

#: Pixels per SVG unit, and the maximum number of pixels along one side.
SCALE = 2.0
MOST_PIXELS = 16_000


def to_png(drawing: Drawing, depth: int | None = None, scale: float = SCALE) -> bytes:
    """The picture of :func:`~autoeidetic.draw.formats.svg.to_svg` in pixels; needs ``viz``.

    Raises:
        MissingPackageError: the renderer is not installed.
    """
    try:
        import resvg_py
    except ImportError as error:
        raise MissingPackageError(
            "PNG is rendered by the package resvg-py, which is not installed",
            remedy='pip install "autoeidetic[viz]", or write .svg instead',
        ) from error
    text = to_svg(drawing, depth)
    # A very large picture is rendered at a lower scale, to limit memory.
    size = re.match(r'<svg[^>]* width="([\d.]+)" height="([\d.]+)"', text)
    longest = max(float(size[1]), float(size[2])) if size else 1.0
    return bytes(resvg_py.svg_to_bytes(svg_string=text, zoom=min(scale, MOST_PIXELS / longest)))
