"""Archive: tensors and a description in one safetensors file, written whole or not at all.

The description is JSON in the header. A digest over it and over every tensor tells an intact file
from a damaged one before any of it is used. Reading runs no code: neither safetensors nor JSON can
hold any. Tensors come back with the strides they had, because kernels give other bits for
``channels_last`` tensors.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, InputError
from .files import replacing

#: Format version, increased when older files can no longer be read.
FORMAT = 1
_KEY = "autoeidetic"
_INTACT = "use an intact copy of the file, or save the network again"
_ELSEWHERE = "choose a file in a directory that exists, may be written to and has room"
#: Things other than a file that a path may lead to; a file in their place would destroy them.
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)
#: The first bytes of a file's header, after eight bytes with its length.
_BEGINNING = f'{{"__metadata__":{{"{_KEY}":'.encode()
#: The subject of facts about a file; :func:`about` replaces it by the path.
_SUBJECT = "the file "


class DamageError(CheckpointError):
    """A file that this package has written is damaged or was edited."""


@contextmanager
def about(path: Any) -> Iterator[None]:
    """Add the path to errors raised inside, whose facts are about "the file"."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(
            named(error.fact, path), place=error.place, remedy=error.remedy
        ) from error


def named(fact: str, path: Any) -> str:
    """A fact about "the file", with its path as the subject.

    >>> named("the file is damaged", "net.safetensors")
    "'net.safetensors' is damaged"
    """
    if fact.startswith(_SUBJECT):
        return f"'{path}' {fact.removeprefix(_SUBJECT)}"
    return f"'{path}' cannot be used: {fact}"


def as_path(path: Any, what: str = "path") -> Path:
    """The path that a caller passed.

    Raises:
        InputError: it is something else.
    """
    try:
        given = os.fspath(path)
        if isinstance(given, str) and given:
            os.fsencode(given)
            if "\0" not in given:
                return Path(given)
    except (TypeError, UnicodeError):
        pass
    raise InputError(
        f"{what} is {path!r:.80}, which is not the path of a file or directory",
        remedy="pass a string that is not empty, or a pathlib.Path",
    )


def write(path: Path, description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Put tensors and a description (plain JSON values) into a file, replacing an older one.

    Raises:
        CheckpointError: the file cannot be written; an older one is as it was.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    _check_target(path)
    # the file:  8 bytes: length of the header, little-endian
    #            header: {"__metadata__": {"autoeidetic": text}, tensor: {dtype, shape, offsets}}
    #            bytes of the tensors, row by row
    # the text:  {"format", "digest", "network", "strides"}; the digest covers the last two, and the
    #            names, types, shapes and bytes of all tensors
    stored = separate(tensors)
    content = {"network": description, "strides": _strides(tensors)}
    text = _canonical({"format": FORMAT, "digest": _digest(content, stored), **content})
    try:
        with replacing(path) as temporary:
            save_file(stored, temporary, {_KEY: text})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"the file cannot be written: {error}", remedy=_ELSEWHERE) from error
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"the file cannot hold a tensor of the network: {error}",
            remedy="convert the network to a type that safetensors knows, such as float32",
        ) from error


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the tensors of an intact file.

    Raises:
        CheckpointError: there is no such file, it is damaged, or it is something else.
    """
    description, tensors, damage = examine(path)
    if damage is not None:
        raise damage
    return description, tensors


def kind(path: Path) -> str:
    """What a file says that it holds, read from its header alone; empty for a network.

    Nothing is checked: for a file that cannot be read, :func:`read` tells why.
    """
    from safetensors import SafetensorError, safe_open

    unreadable = (OSError, SafetensorError, CheckpointError, ValueError, RecursionError)
    with suppress(*unreadable, KeyError, TypeError):
        _check_kind(path)
        with safe_open(path, framework="pt") as file:
            outer = json.loads((file.metadata() or {})[_KEY])
        return str(outer["network"]["kind"])
    return ""


def examine(path: Path) -> tuple[Any, dict[str, Tensor], DamageError | None]:
    """The description and tensors of a file that may be damaged, and its damage if there is any.

    Nothing is guaranteed about the content of a damaged file; a description that cannot be read is
    None.

    Raises:
        CheckpointError: there is no such file, or it is something else.
    """
    while True:
        before = _identity(path)
        try:
            # safetensors opens the file twice, for the header and for the tensors, and a writer may
            # have renamed another one into its place in between
            found = _examine(path)
            if found[2] is None or _identity(path) == before:
                return found
        except CheckpointError:
            if _identity(path) == before:
                raise
        # replaced while it was read, so parts of two files may have been mixed: read again


def _examine(path: Path) -> tuple[Any, dict[str, Tensor], DamageError | None]:
    try:
        outer, tensors = _stored(path)
    except DamageError as error:
        return None, {}, error
    content = {"network": outer["network"], "strides": outer["strides"]}
    intact = outer["canonical"] and outer["digest"] == _digest(content, tensors)
    damage = None if intact else _damaged()
    try:
        tensors = _in_order(tensors, outer["strides"])
    except DamageError as error:
        damage = error
    return outer["network"], tensors, damage


def _identity(path: Path) -> tuple[int, int] | None:
    """A value that changes when the file is replaced."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _stored(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors, unchecked and without their strides."""
    from safetensors import SafetensorError, safe_open

    _check_kind(path)
    try:
        with safe_open(path, framework="pt") as file:
            outer = _outer((file.metadata() or {}).get(_KEY))
            names = file.keys()
            return outer, {name: _copy(file.get_tensor(name)) for name in names}
    except FileNotFoundError as error:
        raise CheckpointError("the file does not exist", remedy="check the path") from error
    except OSError as error:
        fact = f"the file cannot be read: {error}"
        raise CheckpointError(fact, remedy="check the file") from error
    except SafetensorError as error:
        # our own header in a file that cannot be parsed: damage, for example a file cut short
        kind = DamageError if _begins_well(path) else CheckpointError
        raise kind(
            f"the file is not a safetensors file, or is damaged ({error})",
            remedy=f"pass a file that net.save wrote; {_INTACT}",
        ) from error


def _check_kind(path: Path, prefix: str = "") -> None:
    """Check that a path leads to a file or to nothing.

    Raises:
        CheckpointError: it leads to something else: writing would destroy it, and reading may never
            end.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:  # nothing there, or not within reach
        return
    if not stat.S_ISREG(mode):
        kind = next((words for test, words in _KINDS if test(mode)), "something else")
        raise CheckpointError(f"the file {prefix}is {kind}", remedy="pass the path of a file")


def _check_target(path: Path) -> None:
    """Check that a file can be put there.

    Raises:
        CheckpointError: there is something other than a file, or a file without a name.
    """
    _check_kind(path, "cannot be written: it ")
    if os.path.exists(path) and not os.path.exists(os.path.realpath(path)):
        # /proc/self/fd/3 of a file that was removed while it was open
        fact = "the file cannot be written: it is a link to a file without a name"
        raise CheckpointError(fact, remedy=_ELSEWHERE)


def _copy(tensor: Tensor) -> Tensor:
    """A copy of the bytes: tensors of safetensors are views of the file, which may change.

    ``clone`` would turn every boolean byte that is not 0 into 1, and hide an edit of it.
    """
    content = tensor.reshape(-1).view(torch.uint8).clone()
    return content.view(tensor.dtype).reshape(tensor.shape)


def _begins_well(path: Path) -> bool:
    with suppress(OSError), open(path, "rb") as file:
        return file.read(8 + len(_BEGINNING))[8:] == _BEGINNING
    return False


def _outer(text: str | None) -> dict[str, Any]:
    if text is None:
        raise CheckpointError(
            "the file is a safetensors file that net.save has not written",
            remedy="load it into your model (safetensors.torch.load_model), then convert the model",
        )
    try:
        outer = json.loads(text)
        canonical = _canonical(outer) == text
    except (ValueError, RecursionError) as error:
        raise _damaged() from error
    version = outer.get("format") if isinstance(outer, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise CheckpointError(
            f"the file has format {version}, and this autoeidetic reads up to {FORMAT}",
            remedy="upgrade autoeidetic",
        )
    if version != FORMAT or outer.keys() != {"format", "digest", "network", "strides"}:
        raise _damaged()
    # the text itself is compared: some edits (spaces, repeated keys) disappear in parsing
    return {**outer, "canonical": canonical}


def _damaged() -> DamageError:
    fact = "the file is damaged or was edited: its digest is not right"
    return DamageError(fact, remedy=_INTACT)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _digest(content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    total = blake2b(digest_size=32)
    kinds = [[name, str(t.dtype), list(t.shape)] for name, t in sorted(tensors.items())]
    # description and tensor table first: the bytes that follow then have one meaning only
    total.update(_canonical([content, kinds]).encode())
    for _, tensor in sorted(tensors.items()):
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU; safetensors takes no two of them in the same memory."""
    result: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        stored = tensor.detach().cpu().contiguous()
        # contiguous() returns the tensor itself where it can, so tied tensors still share memory
        if stored.untyped_storage().data_ptr() in taken:
            stored = stored.clone()
        taken.add(stored.untyped_storage().data_ptr())
        result[name] = stored
    return result


def _strides(tensors: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """The strides of the tensors that are not laid out row by row."""
    result = {}
    for name, tensor in tensors.items():
        # empty_like keeps the order of the dimensions and closes gaps, as a clone would
        kept = torch.empty_like(tensor, device="meta").stride()
        if kept != torch.empty(tensor.shape, device="meta").stride():
            result[name] = list(kept)
    return result


def _in_order(tensors: Mapping[str, Tensor], strides: Any) -> dict[str, Tensor]:
    """All tensors, with the given strides where there are some.

    Raises:
        DamageError: the strides do not fit the tensors.
    """
    try:
        return {**tensors, **{n: _with_strides(tensors[n], s) for n, s in strides.items()}}
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise _damaged() from error


def _with_strides(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """The same values in memory with other strides."""
    # without gaps or overlaps, sorted strides are the products of the sizes before them
    dense = 1
    for step, size in sorted(zip(strides, tensor.shape, strict=True)):
        if size > 1 and step == dense:
            dense *= size
    if dense != tensor.numel():  # strides with gaps could ask for any amount of memory
        raise _damaged()
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
