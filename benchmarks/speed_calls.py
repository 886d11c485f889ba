"""The cost of calls with sizes that no example had: five hundred lengths or sizes in a row.

A section of ``benchmarks/speed.py``. Networks are small, because the analyses are to be measured;
all times include the forward pass of the network.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autoeidetic.commands.benchmark.runner import Record

SIZES = 500
LOOKUPS = 2000

Make = Callable[[int], dict[str, Any]]


def _words(number: int) -> dict[str, Any]:
    """Lengths 2 to 126, batches of 2 to 5."""
    return {"input_ids": torch.ones(2 + number // 125, 2 + number % 125, dtype=torch.long)}


def _images(number: int) -> dict[str, Any]:
    """Sides of 32 to 80, batches of 2 to 11."""
    return {"x": torch.zeros(2 + number // 50, 3, 32 + number % 50, 32)}


def _transformer(kind: str, **options: Any) -> nn.Module:
    import transformers

    transformers.logging.set_verbosity_error()
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        vocab_size=100,
        max_position_embeddings=128,
        pad_token_id=0,
        **options,
    )
    model: nn.Module = getattr(transformers, f"{kind}ForSequenceClassification")(config)
    return model


def _resnet() -> nn.Module:
    import timm

    model: nn.Module = timm.create_model("test_resnet")
    return model


#: Name -> how the model is built, and its call number n.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Make]] = {
    "bert": (lambda: _transformer("Bert"), _words),
    "llama": (lambda: _transformer("Llama", use_cache=False), _words),
    "deberta_v2": (lambda: _transformer("DebertaV2", relative_attention=True), _words),
    "test_resnet": (_resnet, _images),
}


def calls(name: str) -> Record:
    """Seconds and number of analyses for all sizes, in a first and a second pass."""
    import autoeidetic
    from autoeidetic.calls import calls as made

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    build, inputs = NETWORKS[name]
    net = autoeidetic.convert(build(), inputs(0))
    net.prepare_for_task(0, num_classes=3)
    net.prune(0.5)
    net.finish_task()
    net.eval()
    analyses, analyze = 0, made.analyze

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal analyses
        analyses += 1
        return analyze(*args, **kwargs)

    made.analyze = counted
    first = _all(net, inputs)
    found = analyses
    again = _all(net, inputs)
    made.analyze = analyze
    assert analyses == found, "a known call was analysed"
    return {
        "sizes": SIZES,
        "analyses": found,
        "first": first,
        "again": again,
        "rules": sum(map(len, net.calls.general.values())),
        "lookup": _lookup(net, inputs(7)),
    }


def _all(net: Any, inputs: Make) -> float:
    start = time.perf_counter()
    with torch.no_grad():
        for number in range(SIZES):
            net(**inputs(number), task=0)
    return time.perf_counter() - start


def _lookup(net: Any, call: dict[str, Any]) -> float:
    """Seconds to look up a known call."""
    start = time.perf_counter()
    for _ in range(LOOKUPS):
        net._meet((), call)
    return (time.perf_counter() - start) / LOOKUPS


def calls_report(records: list[Record]) -> str:
    lines = [
        "| network | sizes | analyses | first (s) | again (s) | look-up of a known call (ms) |",
        "|---|---|---|---|---|---|",
    ]
    for record in records:
        if "error" in record:
            lines.append(f"| {record['model']} | {record['error']} | | | | |")
            continue
        lines.append(
            f"| {record['model']} | {record['sizes']} | {record['analyses']} "
            f"| {record['first']:.1f} | {record['again']:.1f} | {1e3 * record['lookup']:.3f} |"
        )
    return "\n".join(lines)
