"""Column: a network that is one column of a widened one.

It is a converted network like any other: its backbone is a copy of the model that also reads
earlier columns, and what it reads of them is an input for it. Tasks, owners, pins, guards and seals
are its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..enforce.pass_lock import exclusive
from ..proof.verify import Verification, verify
from ..tasks.answer import want_gradients
from ..tasks.compiled import uncompiled
from ..tasks.network import Network
from .cache import ColumnCache
from .laterals import KEYWORD, Finished, laterals
from .readers import Laterals


@dataclass(frozen=True)
class ColumnRecord:
    """How a column was made: the width that was asked for, and whether a module was given."""

    width: float
    like: bool


class LaterColumn:
    """Mixed into the class of a network whose backbone is a :class:`~.readers.Column`.

    Called like the model, it runs the earlier columns first.
    """

    earlier: tuple[Finished, ...] = ()
    column: ColumnRecord
    cache: ColumnCache | None = None
    # symbols for the sizes of everything that it reads take the exporter hours
    varies_in_batch_only = True

    def forward(self, *args: Any, task: int | str | None = None, **kwargs: Any) -> Any:
        if KEYWORD not in kwargs:  # the examples of this network have them
            kwargs = {**kwargs, KEYWORD: uncompiled(self._laterals, args, kwargs)}
        return super().forward(*args, task=task, **kwargs)  # type: ignore[misc]

    def _laterals(self: Any, args: Any, kwargs: Any) -> Laterals:
        run = partial(laterals, self.earlier)
        # only what trains: the bits of an answer depend on the batch that it is a part of
        learning = self.training and torch.is_grad_enabled()
        if self.cache is None or not learning or want_gradients((args, kwargs)):
            return run(args, kwargs)
        with self.pass_lock:  # that of the passes: with two locks threads could block each other
            return self.cache.laterals(run, args, kwargs)

    @exclusive
    def verify(
        self: Any, *args: Any, rounds: int = 3, seed: int = 0, **kwargs: Any
    ) -> Verification:
        """Verify the tasks of this column, with free values of earlier ones scrambled as well."""
        self.follow()
        others = [column.network for column in self.earlier]
        return verify(self, args, kwargs, rounds=rounds, seed=seed, others=others)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # pickle finds classes by name, and the name of this class is that of its base
        return _rebuild, (type(self).__mro__[2],), self.__getstate__()  # type: ignore[attr-defined]


def column_class(base: type[Network]) -> type[Network]:
    """The class of later columns of networks of a class."""
    return type(base.__name__, (LaterColumn, base), {"__module__": base.__module__})


def _rebuild(base: type[Network]) -> Network:
    kind = column_class(base)
    return kind.__new__(kind)
