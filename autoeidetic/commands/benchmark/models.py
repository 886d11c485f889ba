"""The models of the benchmark: their names, how they are built, their inputs and their size.

A name is timm's own, ``torchvision:NAME`` or ``transformers:NAME``.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from ...common.inputs import CallInputs, call_inputs
from ...errors import InputError
from ..images.model_names import did_you_mean

#: Encoders in the default configuration of their class, or in base size if the default is larger.
TRANSFORMERS = {
    name: f"{name}For{task}Classification"
    for task, names in {
        "Sequence": "Albert Bert DebertaV2 DistilBert Electra MPNet ModernBert Roberta Wav2Vec2",
        "Image": "ConvNextV2 DeiT Dinov2 Swin ViT",
    }.items()
    for name in names.split()
}
_BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
_LARGER_BY_DEFAULT = ("Albert", "DebertaV2")
_SLOW_START = ("googlenet", "inception_v3")  # their default initialisation takes minutes
_SAMPLES = 4000  # length of a sound input
_WORDS = 100  # token ids are drawn below this number


def timm_names() -> list[str]:
    import timm

    return list(timm.list_models())


def torchvision_names() -> list[str]:
    """All image classification models."""
    from torchvision import models

    return [f"torchvision:{name}" for name in models.list_models(module=models)]


def transformers_names() -> list[str]:
    return [f"transformers:{name}" for name in TRANSFORMERS]


def matching(patterns: Iterable[str]) -> list[str]:
    """The names that match one of the patterns, in the order of the patterns.

    Raises:
        InputError: a pattern matches no name.
    """
    known = [*timm_names(), *torchvision_names(), *transformers_names()]
    found: list[str] = []
    for pattern in patterns:
        fitting = [name for name in known if fnmatchcase(name, pattern)]
        if not fitting:
            raise InputError(
                f"no model matches {pattern!r}",
                remedy=f"{did_you_mean(pattern, known)}timm.list_models() lists all names",
            )
        found += fitting
    return list(dict.fromkeys(found))


def family(name: str) -> str:
    """The timm module that defines a model; the name of the library for other models."""
    library, colon, _ = name.partition(":")
    if colon:
        return library
    import timm

    if not timm.is_model(name):
        return ""
    return str(timm.model_entrypoint(name).__module__).rpartition(".")[2]


def build(name: str, classes: int | None = None) -> nn.Module:
    """A model with random weights and ``classes`` outputs, by default those of its library."""
    library, colon, rest = name.partition(":")
    size: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    if not colon:
        import timm

        return timm.create_model(name, **size)
    if library == "torchvision":
        from torchvision import models

        start = {"init_weights": False} if rest in _SLOW_START else {}
        return models.get_model(rest, weights=None, **start, **size)
    return _transformer(rest, {} if classes is None else {"num_labels": classes})


def _transformer(name: str, size: dict[str, int]) -> nn.Module:
    import transformers

    found: Any = getattr(transformers, TRANSFORMERS[name])
    base = _BASE if name in _LARGER_BY_DEFAULT else {}
    return found(found.config_class(**base, **size))


def example(model: nn.Module) -> Any:
    """Example inputs for models whose inputs ``analyze`` cannot derive itself; otherwise None."""
    if getattr(model, "main_input_name", None) == "input_values":
        return {"input_values": torch.empty(2, _SAMPLES, device="meta")}
    return None


def batch(model: nn.Module) -> CallInputs:
    """Random inputs of the shape that ``analyze`` uses by default."""
    return drawn(call_inputs(model, example(model)))


def drawn(like: CallInputs, count: int | None = None) -> CallInputs:
    """Random inputs of the same shapes, or ``count`` examples of these shapes."""

    def draw(x: Tensor) -> Tensor:
        shape = x.shape if count is None else (count, *x.shape[1:])
        # Ids from 1: in many vocabularies id 0 is padding, which a model may mask.
        return torch.randn(shape) if x.is_floating_point() else torch.randint(1, _WORDS, shape)

    args, kwargs = pytree.tree_map_only(Tensor, draw, (like.args, like.kwargs))
    return CallInputs(args, kwargs)


def as_example(inputs: CallInputs) -> Any:
    """Inputs in the form that ``analyze`` and ``convert`` accept: a dict of keywords or a tuple."""
    return inputs.kwargs or inputs.args


def logits(output: Any) -> Tensor:
    """The first output (others are auxiliary classifiers); a map is averaged over positions."""
    first = next(leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor))
    return first.flatten(2).mean(2) if first.dim() > 2 else first


def parameters(model: nn.Module) -> int:
    """The number of parameters."""
    return sum(p.numel() for p in model.parameters())


def multiply_adds(model: nn.Module, x: CallInputs) -> int:
    """The multiply-adds of one call; torch counts products, convolutions and attention."""
    # The counter's hooks fail where a module's input is a parameter that needs a gradient.
    learned = [p for p in model.parameters() if p.requires_grad]
    try:
        for parameter in learned:
            parameter.requires_grad_(False)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(*x.args, **x.kwargs)
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)
    return int(counter.get_total_flops()) // 2
