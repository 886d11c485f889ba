"""``visualize``: draw a model, an analysis or a network."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from ..enforce.guard import original_class
from ..errors import InputError, with_article
from ..report.dependencies import Dependencies
from ..tasks.network import Network
from .drawing import describe
from .elements import Drawing
from .failure import attempt
from .formats import save
from .network import analyzed, with_leaving


def visualize(
    model: nn.Module | Dependencies,
    path: str | os.PathLike[str] | None = None,
    example_inputs: Any = None,
    *,
    title: str = "",
    format: str | None = None,
    depth: int | None = None,
    task: Any = None,
) -> Drawing:
    """Draw the channel dependencies of a model.

    A model that cannot be analysed is drawn as far as it was captured, with the failure at its
    place (``drawing.failure``).

    Args:
        model: a model, a program, the result of :func:`autoeidetic.analyze`, or a converted
            network, which is drawn with its tasks.
        path: a file to write: ``.html``, ``.svg``, ``.png``, ``.dot``, ``.mmd`` (Mermaid),
            ``.graphml`` or ``.json``.
        example_inputs: as for :func:`autoeidetic.analyze`.
        title: the title of the drawing.
        format: one of these endings, if the file name has another.
        depth: how deep modules are opened in ``.svg``, ``.png``, ``.dot`` and ``.mmd``; by
            default as deep as the drawing stays readable.
        task: tasks of a network, as for :meth:`autoeidetic.EideticNet.extract`: the drawing shows
            what leaves with their program, and the rest faded.

    Example:
        >>> import torch, autoeidetic
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> drawing = autoeidetic.visualize(model, example_inputs=torch.randn(2, 4), title="small")
        >>> drawing.title, [group.size for group in drawing.groups]
        ('small', [8])

    Raises:
        InputError: inputs are missing, the format or the directory does not exist, or a task is
            given for something that has none.
        TaskError: the network has no such task, or it is not finished.
        MissingPackageError: ``.svg`` and ``.png`` need ``pip install "autoeidetic[viz]"``.
    """
    if task is not None and not isinstance(model, Network):
        raise InputError(
            f"visualize() was given task={task!r} and {with_article(type(model).__qualname__)}, "
            "which has no tasks",
            remedy="omit task, or pass a converted network",
        )
    if isinstance(model, Dependencies):
        drawing = describe(model, title=title)
    elif isinstance(model, Network):
        title = title or original_class(model.networks[0].backbone).__name__
        drawing = describe(analyzed(model), model, title)
        if task is not None:
            drawing = with_leaving(drawing, model, task)
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
