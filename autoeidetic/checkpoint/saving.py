"""Saving: write a network to one file, complete enough to continue from it bit for bit.

The file holds the tensors of the backbone, the heads and the router, the owners, and a JSON record
of everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..common import archive
from ..common.undisturbed import undisturbed
from ..errors import CheckpointError, Place
from ..tasks.network import Network
from . import rebuild
from .example import encode_calls
from .fill import distinct
from .record import EXAMPLE, OWNERS, PRUNED, ROUTER, Record, RouterRecord, fingerprint, versions


def save(net: Network, path: Any) -> None:
    """Write a network to one file, all or nothing.

    The file is about as large as the model and its heads. A network can be saved at any time, also
    in the middle of a task. The optimizer, the state of random generators, and attributes of
    modules that are not parameters or buffers are not saved.

    Example:
        >>> import tempfile, torch, autoeidetic
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> net = autoeidetic.convert(model, torch.randn(2, 4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     net.save(f"{folder}/net.safetensors")

    Raises:
        CheckpointError: the file cannot be written, or the network has state that no file holds.
    """
    file = archive.as_path(path)
    with archive.about(path), undisturbed(generators="cpu", trainable=True):
        archive.write(file, *contents(net))


def contents(net: Network) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file holds of a network: plain JSON values, and tensors by name.

    Raises:
        CheckpointError: the network has state that no file holds.
    """
    # An optimizer step may have moved frozen values since the last pass; save the pinned ones.
    net.pins.impose()
    values = distinct(net.slots)
    _check_storable(net, values)
    # One flat name space: backbone.*, heads.*, owners, pruned, router.*, example.*
    tensors = dict(values)
    tensors[OWNERS] = torch.from_numpy(net.owners.task)
    tensors[PRUNED] = torch.from_numpy(net.owners.pruned)
    router = net.router
    if router is not None:
        tensors |= {f"{ROUTER}{name}": value for name, value in router.named_buffers()}
    example = encode_calls(net, tensors, EXAMPLE)
    record = Record(
        versions=versions(),
        options={
            "forward_transfer": net.owners.forward_transfer,
            "keep_head": net.keep_head,
            "recycle": net.recycle,
        },
        tasks=net.tasks,
        spreads=dict(net.spreads),
        example=example,
        training=net.training,
        other_mode=[name for name, m in net.named_modules() if m.training != net.training],
        without_gradient=[
            name
            for name, tensor in values.items()
            if isinstance(tensor, nn.Parameter) and not tensor.requires_grad
        ],
        # net.half() and the like change types after the analysis. A loaded model is analysed in
        # the types of the first conversion, to get the same units.
        analysed_as={
            name: str(net.analysed_types[name])
            for name, tensor in values.items()
            if net.analysed_types.get(name, tensor.dtype) != tensor.dtype
        },
        recipe=rebuild.recipe(net.backbone, net.call_plan.heads[0].size),
        fingerprint=fingerprint(net.call_plan),
        router=None if router is None else RouterRecord(router.kind, router.tasks),
    )
    return record.to_dict(), tensors


def _check_storable(net: Network, values: Mapping[str, Tensor]) -> None:
    """Refuse state that a file would silently lose."""
    for name, tensor in values.items():
        if tensor.is_meta or tensor.layout != torch.strided:
            raise CheckpointError(
                f"the file cannot hold {name}: it has no values, or is not a dense tensor",
                remedy="save a network of dense tensors on a real device",
            )
    for path, module in net.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise CheckpointError(
                "the file cannot hold the extra state of a module (get_extra_state)",
                place=Place(module=path),
                remedy="keep the state in buffers",
            )
    # Two parameters in one memory are tied in a way that neither file nor rebuilt model can show.
    first: dict[int, str] = {}
    for name, tensor in values.items():
        if isinstance(tensor, nn.Parameter) and tensor.numel():
            other = first.setdefault(tensor.data_ptr(), name)
            if other != name:
                raise CheckpointError(
                    f"the file cannot hold {name} and {other}, which are different parameters in "
                    "one memory",
                    remedy="tie them by using the same Parameter in both places",
                )
