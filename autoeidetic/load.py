"""``load`` and ``audit``: a saved network or program, opened or examined."""

from __future__ import annotations

from typing import Any, overload

from torch import nn

from . import checkpoint
from .checkpoint import Audit
from .convert import convert
from .errors import InputError
from .extract import files
from .net import EideticNet
from .widen import files as wide_files


@overload
def load(path: Any, model: nn.Module) -> EideticNet: ...


@overload
def load(path: Any, model: None = None) -> Any: ...


def load(path: Any, model: nn.Module | None = None) -> Any:
    """Load a saved network or program, on the CPU and in the precision it had.

    From here on it behaves like the saved one, bit for bit. No code in the file is run. Only the
    start of an open task may be lost, if no seed reproduces it: then ``rollback()`` raises.

    Args:
        path: a file that ``net.save`` wrote, or a ``.safetensors`` file that ``program.save``
            wrote.
        model: a new model built as the saved one was, with any values, on any device (``meta``
            too). It is copied without its values and not changed. It may be left out for models
            that timm or torchvision build by name. A program needs none. For a network that was
            widened with ``like=``, a list: the model, and the module of each later column.

    Example:
        >>> import tempfile, torch, autoeidetic
        >>> from torch import nn
        >>> def build():
        ...     return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> net = autoeidetic.convert(build(), torch.randn(2, 4))
        >>> net.prepare_for_task(0, num_classes=2); net.prune(0.5); net.finish_task()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     net.save(f"{folder}/net.safetensors")
        ...     again = autoeidetic.load(f"{folder}/net.safetensors", model=build())
        >>> x = torch.randn(5, 4)
        >>> torch.equal(again(x, task=0), net(x, task=0))
        True

    Raises:
        CheckpointError: the file is missing, damaged or something else; it does not tell how to
            build the model; the model is not the saved one.
        InputError: a model was passed for a program.
    """
    if wide_files.is_wide(path):
        return wide_files.load(path, model, convert)
    if not files.is_program(path):
        return checkpoint.load(path, model, convert)
    if model is not None:
        raise InputError(f"'{path}' holds a program, which needs no model", remedy="omit model")
    return files.load(path)


def audit(path: Any, model: nn.Module | None = None, *, digest: str | None = None) -> Audit:
    """Compare the finished tasks in a file with their seals, taken when they were finished.

    The seal of a task has a digest of the values that it froze in each tensor, one of the units it
    owns, its outputs for reference inputs, and its name, classes and options. All are checked, and
    the tasks and tensors that are not as sealed are named. The file and the random generators stay
    as they are.

    Args:
        path: a file that ``net.save`` wrote, possibly edited since.
        model: as for :func:`autoeidetic.load`.
        digest: ``audit(path).digest`` of an earlier time, kept elsewhere: the seals of that time
            must still be there, the same tasks must answer, and the router and everything else that
            decides an answer must be the same. Tasks finished since then do not matter.

    Example:
        >>> import tempfile, torch, autoeidetic
        >>> from torch import nn
        >>> def build():
        ...     return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> net = autoeidetic.convert(build(), torch.randn(2, 4))
        >>> net.prepare_for_task(0, num_classes=2); net.prune(0.5); net.finish_task()
        >>> path = f"{tempfile.mkdtemp()}/net.safetensors"
        >>> net.save(path)
        >>> report = autoeidetic.audit(path, build())
        >>> report.ok
        True
        >>> autoeidetic.audit(path, build(), digest=report.digest).ok
        True

    Raises:
        CheckpointError: there is no such file, it is something else, or no model fits it.
        InputError: ``digest`` is not a digest.
    """
    if wide_files.is_wide(path):
        return wide_files.audit(path, model, convert, digest=digest)
    return checkpoint.audit(path, model, convert, digest=digest)
