"""Names: what the name of a parameter tells."""

from __future__ import annotations


def layer_of(parameter: str) -> str:
    """The module that a parameter belongs to; the parameter itself when the root holds it.

    For a parameter that a weight is computed from, the module that has the weight.

    >>> layer_of("blocks.0.attn.qkv.weight"), layer_of("cls_token")
    ('blocks.0.attn.qkv', 'cls_token')
    >>> layer_of("0.parametrizations.weight.original0")
    '0'
    """
    layer, parametrised, _ = parameter.partition(".parametrizations.")
    return layer if parametrised else parameter.rpartition(".")[0] or parameter
