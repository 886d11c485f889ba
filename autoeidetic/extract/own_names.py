"""Own names: tensors and modules of a captured pass under the names of the user's model."""

from __future__ import annotations

import re

#: A tensor of the model, which a column has in a module of its own.
_BODY = re.compile(r"network\.(columns\.\d+\.)?backbone\.(?:(?<=\d\.backbone\.)model\.)?")
#: A tensor of a head: its column, its task, its layer with "/" for ".", and its name in the layer.
_HEAD = re.compile(r"network\.(columns\.\d+\.)?heads\.(\d+)\.([^.]+)\.(.+)")


def own_name(name: str, single: int | None) -> str:
    """The name of a tensor in the user's model; those of a column begin with its number.

    >>> own_name("network.backbone.conv1.weight", 0), own_name("network.heads.0.head/fc.bias", 0)
    ('conv1.weight', 'head.fc.bias')
    >>> own_name("network.heads.1.fc.bias", None)
    'heads.1.fc.bias'
    >>> own_name("network.columns.1.backbone.model.conv1.lateral.weight", 3)
    'columns.1.conv1.lateral.weight'
    >>> own_name("network.columns.1.heads.0.model/fc/layer.bias", 3)
    'columns.1.fc.layer.bias'
    """
    match = _HEAD.match(name)
    if match:
        column, task, layer, rest = match.groups()
        layer = layer.removeprefix("model/") if column else layer
        own = f"{layer.replace('/', '.')}.{rest}"
        own = own.removesuffix(".value").replace("attached.linear.", "head.")
        return (column or "") + (own if single is not None else f"heads.{task}.{own}")
    return _BODY.sub(r"\1", name).removeprefix("network.")


def own_path(path: str, single: int | None) -> str:
    """The path of a module in the user's model."""
    return own_name(f"{path}.", single).rstrip(".")
