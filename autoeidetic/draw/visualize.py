"""``visualize``: a model, an analysis or a network in, a drawing out."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from ..errors import InputError, with_article
from ..report.dependencies import Dependencies
from ..tasks.network import Network
from .drawing import describe
from .elements import Drawing
from .failure import attempt
from .formats import save
from .network import analyzed


def visualize(
    model: nn.Module | Dependencies,
    path: str | os.PathLike[str] | None = None,
    example_inputs: Any = None,
    *,
    title: str = "",
    format: str | None = None,
    depth: int | None = None,
) -> Drawing:
    """Draw how a model hangs together.

    A model that cannot be analysed is drawn as far as it was captured, and the failure is shown
    in its place (``drawing.failure``).

    Args:
        model: a model, what :func:`autoeidetic.analyze` gave, or a converted network, which is
            drawn with its tasks.
        path: a file to write: ``.html``, ``.svg``, ``.png``, ``.dot``, ``.mmd`` (Mermaid),
            ``.graphml`` or ``.json``.
        example_inputs: as for :func:`autoeidetic.analyze`.
        title: what stands above the drawing.
        format: one of these endings, when the file's name has another.
        depth: how deep modules are opened in ``.svg``, ``.png``, ``.dot`` and ``.mmd``; by
            default as far as one can still read it.

    Example:
        >>> import torch, autoeidetic
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> drawing = autoeidetic.visualize(model, example_inputs=torch.randn(2, 4), title="small")
        >>> drawing.title, [group.size for group in drawing.groups]
        ('small', [8])

    Raises:
        InputError: inputs are missing, or there is no such format or directory.
        MissingPackageError: ``.svg`` and ``.png`` need ``pip install "autoeidetic[viz]"``.
    """
    if isinstance(model, Dependencies):
        drawing = describe(model, title=title)
    elif isinstance(model, Network):
        drawing = describe(analyzed(model), model, title)
    elif isinstance(model, nn.Module):
        drawing = attempt(model, example_inputs, title)
    else:
        raise InputError(
            f"visualize() was given {with_article(type(model).__qualname__)}",
            remedy="pass a torch.nn.Module, an analysis or a converted network",
        )
    if path is not None:
        save(drawing, path, format, depth)
    return drawing
