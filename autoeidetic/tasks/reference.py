"""Reference: inputs that are the same on every machine, and what a task answers to them.

The inputs have the shapes of the example inputs. Real numbers come from a stream of SHAKE-256, so
they need no place in a file and no random generator. Integers are those of the example where a
file holds them.
"""

from __future__ import annotations

import base64
import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b, shake_256
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..common.bits import alike
from ..common.digests import Hasher
from ..common.inputs import BATCH
from ..common.undisturbed import seed_generators, undisturbed
from .task import Output, Reference

if TYPE_CHECKING:
    from .network import Network

#: Small integer inputs may be indices that decide what a model does: they are kept by value.
_BYTES_BY_VALUE = 2**16
#: Values of a large output that are kept, to tell by how much it differs; the digest covers all.
_SAMPLE = 256


def refer(net: Network, task: int) -> Reference | str:
    """A task's answer to reference inputs, or the reason why there is none. Changes nothing.

    A few rows are enough, unless the model only takes the batch size of its example.
    """
    why_not = ""
    few = few_rows(net)
    for batch in (few, None) if few else (None,):
        try:
            return ask(net, task, batch)
        except Exception as error:  # whatever a model may raise on inputs that it does not know
            why_not = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
    return why_not


def ask(net: Network, task: int, batch: int | None) -> Reference:
    """The answer of the task itself, not of a revisit that answers in its place."""
    with asking(net, batch) as (args, kwargs, asked):
        return recorded(net, net.answer(task, args, kwargs), batch, asked)


@contextmanager
def asking(net: Network, batch: int | None) -> Iterator[tuple[Any, Any, str]]:
    """Reference inputs and their digest, while nothing disturbs the network's answers to them."""
    device = next(net.backbone.parameters()).device
    args, kwargs = inputs(net, batch)
    asked = Hasher()
    asked.update((args, kwargs))
    args, kwargs = pytree.tree_map_only(Tensor, lambda t: t.to(device), (args, kwargs))
    buffers = [b for part in (net.backbone, net.heads) for b in part.buffers()]
    with undisturbed(
        net,
        evaluate=True,
        attributes=True,
        values=buffers,
        generators="all",
        seed=0,
        gradients=False,
        autocast=(device.type,),
        eager=True,
        quiet=True,
    ):
        net.before_pass(args, kwargs)
        yield args, kwargs, asked.digest()


def both_answers(net: Network, task: int, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """A task's answer with all units there are, and one with only those that it may read.

    A model may be random in eval mode: where it does not repeat its own answer, both are the same.
    """
    seed_generators(0)
    (answer,) = net.bare_answers([task], args, kwargs)
    seed_generators(0)
    alone = net.answer_alone(task, args, kwargs)
    seed_generators(0)
    repeatable = alike(answer, alone) or alike(alone, net.answer_alone(task, args, kwargs))
    return (answer, alone) if repeatable else (alone, alone)


def poisoned(net: Network, task: int) -> bool:
    """Do units that a finished task may not read change its answer to reference inputs?"""
    sealed = net.tasks[task].seal
    if sealed is None or sealed.reference is None:
        return False
    with asking(net, sealed.reference.batch) as (args, kwargs, _):
        return not alike(*both_answers(net, task, args, kwargs))


def recorded(net: Network, answer: Any, batch: int | None, asked: str) -> Reference:
    """An answer to reference inputs."""
    outputs = [_output(leaf) for leaf in pytree.tree_leaves(answer) if isinstance(leaf, Tensor)]
    here = environment(next(net.backbone.parameters()).device)
    return Reference(batch, asked, tuple(outputs), here)


def environment(device: torch.device) -> dict[str, str]:
    """What decides about the last bits."""
    name = f" {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
    return {
        "device": f"{device.type}{name}",
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "precision": torch.get_float32_matmul_precision(),
    }


def close(then: Reference, now: Reference) -> bool:
    """Are two answers the same up to rounding, as far as their samples tell?"""
    if len(then.outputs) != len(now.outputs):
        return False
    for before, after in zip(then.outputs, now.outputs, strict=True):
        one, other = sample(before), sample(after)
        if (before.type, before.shape) != (after.type, after.shape) or one.shape != other.shape:
            return False
        if one.is_floating_point() or one.is_complex():
            one, other = (torch.view_as_real(t) if t.is_complex() else t for t in (one, other))
            loose = torch.finfo(one.dtype).eps ** 0.5
            one, other = one.double(), other.double()
            size = one.nan_to_num(0, 0, 0).abs().max() if one.numel() else 0
            if not torch.allclose(one, other, loose, loose * float(size), equal_nan=True):
                return False
        elif not torch.equal(one, other):
            return False
    return True


def sample(output: Output) -> Tensor:
    """The values of an output that were kept."""
    data = bytearray(base64.b64decode(output.sample))
    kind = getattr(torch, output.type.removeprefix("torch."))
    return torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)


# -- inputs ------------------------------------------------------------------------------------


def by_value(tensor: Tensor) -> bool:
    """Is an example input kept with its values, in a file as well?"""
    real = tensor.is_floating_point() or tensor.is_complex() or tensor.is_meta
    return not real and tensor.numel() * tensor.element_size() <= _BYTES_BY_VALUE


def inputs(net: Network, batch: int | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments, on the CPU."""
    leaves, structure = pytree.tree_flatten((net.example.args, net.example.kwargs))
    made = [
        _drawn(leaf[:batch] if leaf.dim() else leaf, number, type_now(net, leaf.dtype))
        if isinstance(leaf, Tensor)
        else leaf
        for number, leaf in enumerate(leaves)
    ]
    args, kwargs = pytree.tree_unflatten(made, structure)
    return args, kwargs


def of_example(net: Network) -> str:
    """A digest of the example inputs, as far as a file holds them."""
    calls = [[each.args, each.kwargs] for each in net.examples]
    content = _plain_values(calls[0] if len(calls) == 1 else calls)
    return blake2b(json.dumps(content, default=str).encode(), digest_size=32).hexdigest()


def _plain_values(value: Any) -> Any:
    if isinstance(value, Tensor):
        known = digest(value) if by_value(value) else None
        return {"shape": list(value.shape), "type": str(value.dtype), "values": known}
    if isinstance(value, Mapping):
        return {"dict": [[key, _plain_values(item)] for key, item in value.items()]}
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_plain_values(item) for item in value]}
    return value


def few_rows(net: Network) -> int | None:
    """A batch that is smaller than the example's; None when it is small, or there is none."""
    leaves = pytree.tree_leaves((net.example.args, net.example.kwargs))
    lengths = {leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()}
    return BATCH if len(lengths) == 1 and lengths.pop() > BATCH else None


def type_now(net: Network, example: torch.dtype) -> torch.dtype:
    """The type of real inputs, which follows that of the network."""
    for name, analysed in net.analysed_types.items():
        if analysed == example and name in net.slots:
            home, leaf = net.slots[name]
            return home[leaf].dtype
    return example


def _drawn(example: Tensor, number: int, kind: torch.dtype) -> Tensor:
    if by_value(example):
        return example.detach().cpu()
    if example.is_complex():
        parts = _bell(number, (*example.shape, 2))
        return torch.view_as_complex(parts).to(example.dtype)
    if example.is_floating_point():
        return _bell(number, tuple(example.shape)).to(kind)
    if example.dtype == torch.bool:
        return torch.ones(example.shape, dtype=torch.bool)
    return (_bell(number, tuple(example.shape)) > 0).to(example.dtype)  # every table has two rows


def _bell(number: int, shape: tuple[int, ...]) -> Tensor:
    """Nearly normal values of variance 4/3: sums of four bytes, exact in single precision."""
    count = int(np.prod(shape, dtype=np.int64))
    stream = shake_256(f"autoeidetic reference {number}".encode()).digest(4 * count)
    sums = np.frombuffer(stream, np.uint8).reshape(count, 4).sum(1, dtype=np.float32)
    return torch.from_numpy((sums - 510) / 128).reshape(shape)


# -- values ------------------------------------------------------------------------------------


def digest(tensor: Tensor) -> str:
    """Of the type, the shape and the bits of a tensor; minus zero is zero."""
    hasher = Hasher()
    hasher.update(_plain(tensor))
    return hasher.digest()


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    signed = tensor.is_floating_point() or tensor.is_complex()
    return tensor + 0 if signed and tensor.element_size() > 1 else tensor


def _output(tensor: Tensor) -> Output:
    flat = _plain(tensor).reshape(-1)
    some = flat[:: max(1, -(-len(flat) // _SAMPLE))].contiguous()
    sample = base64.b64encode(some.view(torch.uint8).numpy().tobytes()).decode()
    return Output(str(tensor.dtype), tuple(tensor.shape), digest(tensor), sample)
