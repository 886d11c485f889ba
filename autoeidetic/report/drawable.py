"""Drawable: the methods that write a drawing in every format."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.tables import notebook_html

if TYPE_CHECKING:
    from ..draw.elements import Drawing

FilePath = str | os.PathLike[str]
#: A larger page is not put into a notebook, whose file would keep it.
_LARGEST_INLINE = 6_000_000


class Drawable:
    """Gives an analysis, a network and a program their drawings.

    With ``task`` the drawing of a network shows what leaves with the program of this task, and the
    rest faded; see :meth:`autoeidetic.EideticNet.extract` for what it may be.

    The room ``draw`` imports them, so it comes later, and is imported when something is drawn. It
    is the only room that an earlier one imports.
    """

    def drawing(self, title: str = "", *, task: Any = None) -> Drawing:
        """The description that all formats are made from."""
        from ..draw.visualize import visualize

        return visualize(self, title=title, task=task)  # type: ignore[arg-type]

    def to_html(self, path: FilePath | None = None, *, title: str = "", task: Any = None) -> str:
        """One page that works offline, with everything to click on; written to ``path`` if given.

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> deps = autoeidetic.analyze(nn.Linear(4, 2), torch.randn(2, 4))
            >>> deps.to_html().startswith("<!doctype html>")
            True
        """
        return self._rendered("html", path, self.drawing(title, task=task), None).decode()

    def to_svg(
        self,
        path: FilePath | None = None,
        *,
        title: str = "",
        depth: int | None = None,
        task: Any = None,
    ) -> str:
        """A picture for papers; written to ``path`` if given. Needs the ``viz`` extra."""
        return self._rendered("svg", path, self.drawing(title, task=task), depth).decode()

    def to_png(
        self,
        path: FilePath | None = None,
        *,
        title: str = "",
        depth: int | None = None,
        task: Any = None,
    ) -> bytes:
        """The picture in pixels; written to ``path`` if given. Needs the ``viz`` extra."""
        return self._rendered("png", path, self.drawing(title, task=task), depth)

    def to_dot(self, *, title: str = "", depth: int | None = None, task: Any = None) -> str:
        """The drawing in Graphviz's language."""
        return self._rendered("dot", None, self.drawing(title, task=task), depth).decode()

    def to_mermaid(self, *, title: str = "", depth: int | None = None, task: Any = None) -> str:
        """The drawing as a Mermaid flow chart."""
        return self._rendered("mmd", None, self.drawing(title, task=task), depth).decode()

    def to_graphml(self, *, title: str = "", task: Any = None) -> str:
        """Every node and edge of the drawing as GraphML."""
        return self._rendered("graphml", None, self.drawing(title, task=task), None).decode()

    def _rendered(
        self, format: str, path: FilePath | None, drawing: Drawing, depth: int | None
    ) -> bytes:
        from ..draw.formats import render, write

        content = render(drawing, format, depth)
        if path is not None:
            write(content, Path(path))
        return content

    def _summary(self) -> str:
        """The text that a notebook shows."""
        return str(self)

    def _repr_html_(self) -> str:
        table = notebook_html(self._summary())
        page = self.to_html()
        if len(page) > _LARGEST_INLINE:
            return table
        # a sandboxed frame: the page's scripts and styles do not reach the notebook
        frame = (
            f'<iframe srcdoc="{escape(page)}" sandbox="allow-scripts" title="drawing" '
            'style="width:100%;height:600px;border:1px solid #ccc"></iframe>'
        )
        return f"{frame}<details><summary>as a table</summary>{table}</details>"
