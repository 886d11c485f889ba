"""Names: paths of a model's modules, parameters and buffers, found by identity."""

from __future__ import annotations

from torch import Tensor, nn


class Names:
    """The names of a model's modules and tensors; if one has several, the first counts."""

    def __init__(self, model: nn.Module) -> None:
        self.paths: dict[int, str] = {}  # id of a module -> its path
        self.types: dict[str, str] = {}
        self.parameters: dict[str, nn.Parameter] = {}
        self.aliases: dict[str, str] = {}  # a further name of a parameter -> its first one
        self.buffers: dict[str, Tensor] = {}
        self.parameter_names: dict[int, str] = {}
        self.buffer_names: dict[int, str] = {}
        # all paths of a shared module: types has each of them, paths only the first
        for path, module in model.named_modules(remove_duplicate=False):
            self.paths.setdefault(id(module), path)
            self.types[path] = type(module).__name__
            self._name_tensors(f"{path}." if path else "", module)

    def _name_tensors(self, prefix: str, module: nn.Module) -> None:
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            first = self.parameter_names.setdefault(id(parameter), prefix + name)
            if first == prefix + name:
                self.parameters[first] = parameter
            else:
                self.aliases[prefix + name] = first
        for name, buffer in module._buffers.items():
            if buffer is not None:
                first = self.buffer_names.setdefault(id(buffer), prefix + name)
                self.buffers[first] = buffer

    def is_parameter(self, tensor: Tensor) -> bool:
        return id(tensor) in self.parameter_names

    def is_named(self, tensor: Tensor) -> bool:
        """Is it a parameter or a buffer of the model?"""
        return id(tensor) in self.parameter_names or id(tensor) in self.buffer_names


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
