"""Own names: tensors and modules of a captured pass under the names of the user's model."""

from __future__ import annotations

import re

_BODY = "network.backbone."
#: A tensor of a head: its task, its layer with "/" for ".", and its name in the layer.
_HEAD = re.compile(r"network\.heads\.(\d+)\.([^.]+)\.(.+)")


def own_name(name: str, single: int | None) -> str:
    """The name of a tensor in the user's model.

    >>> own_name("network.backbone.conv1.weight", 0), own_name("network.heads.0.head/fc.bias", 0)
    ('conv1.weight', 'head.fc.bias')
    >>> own_name("network.heads.1.fc.bias", None)
    'heads.1.fc.bias'
    """
    match = _HEAD.match(name)
    if match:
        task, layer, rest = match.groups()
        own = f"{layer.replace('/', '.')}.{rest}"
        own = own.removesuffix(".value").replace("attached.linear.", "head.")
        return own if single is not None else f"heads.{task}.{own}"
    return name.removeprefix(_BODY).removeprefix("network.")


def own_path(path: str, single: int | None) -> str:
    """The path of a module in the user's model."""
    return own_name(f"{path}.", single).rstrip(".")
