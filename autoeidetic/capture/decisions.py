"""Decisions: values that Python code reads out of tensors in a pass, and that may decide its path.

Two passes of a model with the same signature and the same decisions take the same path.
:func:`decisions` collects those of a pass; :class:`DecisionLog` replays them in the analysis.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..common.trees import leaves
from ..errors import EnforcementError, Place

#: Functions that turn the content of a tensor into Python or NumPy values.
_LEAVES_TORCH = frozenset({Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__})
_READS_LISTS = frozenset({torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor})
#: Operators whose number (``item``) or shape (``nonzero``) depends on data.
_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_DECIDE: dict[Any, bool] = {}


def _decides(func: Any, args: Any) -> bool:
    """Does the number or the shape that an operator returns depend on data?"""
    known = _DECIDE.get(func)
    if known is None:
        known = _DECIDE[func] = any(tag in func.tags for tag in _TAGS)
    if func is torch.ops.aten.index.Tensor:  # integers have a fixed size, masks have not
        return any(index is not None and index.dtype is torch.bool for index in args[1])
    return known


def _outcome(func: Any, output: Any) -> tuple[Hashable, ...]:
    """The part of a result that Python code sees: numbers, and the shapes of tensors."""
    told = (
        tuple(leaf.shape) if isinstance(leaf, Tensor) else leaf
        for leaf in pytree.tree_leaves(output)
    )
    return str(func), *told


def given_away(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors whose content a function reads without an operator that shows it."""
    if func in _LEAVES_TORCH:
        return [args[0]]
    if func in _READS_LISTS:  # tensors in lists; a copy of a tensor itself is an operator
        lists = [a for a in (*args, *kwargs.values()) if not isinstance(a, Tensor)]
        return leaves(lists, Tensor)
    return []


def _content(func: Any, tensor: Tensor) -> tuple[Hashable, ...]:
    """The values of a tensor that becomes a list or an array."""
    # bytes and not numbers: they are hashable, and NaN equals itself
    values = tensor.detach().cpu().contiguous()
    plain = values.view(torch.uint8) if values.dim() else values.reshape(1).view(torch.uint8)
    return func.__name__, tuple(tensor.shape), bytes(plain.numpy().tobytes())


class _Operators(TorchDispatchMode):
    def __init__(self, seen: list[Hashable]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if _decides(func, args):
            self.seen.append(_outcome(func, output))
        return output


class _Functions(TorchFunctionMode):
    def __init__(self, seen: list[Hashable]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in given_away(func, args, kwargs or {}):
            self.seen.append(_content(func, tensor))
        return func(*args, **(kwargs or {}))


@contextmanager
def decisions() -> Iterator[list[Hashable]]:
    """Collect the decisions of the code that runs inside, in order.

    Example:
        >>> with decisions() as seen:
        ...     bool(torch.ones(3).any())
        True
        >>> seen
        [('aten._local_scalar_dense.default', True)]
    """
    seen: list[Hashable] = []
    with _Operators(seen), _Functions(seen):
        yield seen


class DecisionLog:
    """The decisions of analysed calls: collected, or replayed where they are known beforehand.

    ``real`` tells whether there are values to decide by; ``place`` gives the place of an error.
    """

    def __init__(self, real: bool, place: Callable[[], Place]) -> None:
        self.taken: list[tuple[Hashable, ...]] = []  # of each call
        self._real = real
        self._place = place
        self._known: Iterator[Hashable] | None = None
        self._own: list[Hashable] = []

    @contextmanager
    def of_call(self, known: tuple[Hashable, ...] | None) -> Iterator[None]:
        """One call of the model, with its decisions if they are known.

        Raises:
            EnforcementError: the code reads something else.
        """
        # known: replay them in order; not known: collect them
        self._known, self._own = None if known is None else iter(known), []
        yield
        if self._real and self._known is not None:
            # the code has read less than it is known to read: another path
            if next(self._known, None) is not None:
                raise self._differs()
        self.taken.append(tuple(self._own) if known is None else known)
        self._known = None

    def result(self, func: Any, args: Any, output: Any) -> Any:
        """The result of an operator; where it may decide the path, the known one.

        Raises:
            EnforcementError: another operator is known to decide here.
        """
        if not self._real or not _decides(func, args):
            return output
        # the analysis has other values (examples, stand-ins): the known outcome replaces its own
        own = _outcome(func, output)
        known = self._next(own)
        if known == own:
            return output
        leaves, structure = pytree.tree_flatten(output)
        if known[:1] != own[:1] or len(known) != len(own):
            raise self._differs()
        # only the shape of a tensor is known; zeros do as its values, which are indices
        same = [
            leaf.new_zeros(what) if isinstance(leaf, Tensor) else what
            for leaf, what in zip(leaves, known[1:], strict=True)
        ]
        return pytree.tree_unflatten(same, structure)

    def read(self, func: Any, tensor: Tensor) -> None:
        """Note that the content of a tensor becomes a list or an array.

        Raises:
            EnforcementError: it is known to be another one.
        """
        own = _content(func, tensor)
        if self._real and self._next(own) != own:
            raise self._differs()

    def _next(self, own: tuple[Hashable, ...]) -> Any:
        """The value that the code is known to read here, or the one that it has just read."""
        if self._known is None:
            self._own.append(own)
            return own
        return next(self._known, ())

    def _differs(self) -> EnforcementError:
        return EnforcementError(
            "the model's code looks at values that differ between a network with several tasks and "
            "the model alone, so its path cannot be analysed",
            place=self._place(),
            remedy="compute with tensors instead of numbers and sizes that depend on data "
            "(torch.where instead of if)",
        )
