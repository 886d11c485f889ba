"""Joined: the bare models of all columns as one model, for drawings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from .laterals import Finished, column_kwargs, copies, read_while
from .readers import Column, Laterals


class Joined(nn.Module):
    """Runs columns one after another, each with what it reads of those before.

    Paths are those of the user's model behind the number of the column: ``columns.1.conv1``.
    """

    def __init__(self, backbones: Sequence[nn.Module], earlier: Sequence[Finished]) -> None:
        super().__init__()
        self.columns = nn.ModuleList(
            each.model if isinstance(each, Column) else each for each in backbones
        )
        # not as modules, which would have two paths
        self.__dict__["_called"] = (tuple(backbones), tuple(earlier))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        backbones, earlier = self.__dict__["_called"]
        found: Laterals = {}
        outputs = []
        for number, backbone in enumerate(backbones):
            own, named = copies(args, column_kwargs(number, kwargs, found))
            if number == len(earlier):
                outputs.append(backbone(*own, **named))
            else:
                run = lambda: outputs.append(backbone(*own, **named))  # noqa: B023, E731
                found = read_while(run, found, earlier[number])
        return outputs
