"""No bit moved: three tasks in a row on the smallest model of every family.

    python benchmarks/torture.py --workers 2              # timm's 97 families, torchvision's 22
    python benchmarks/torture.py --models test_resnet torchvision/swin_t

Writes results/torture.json and results/torture.md (for all models) and prints the report.
See README.md in this directory for what is done to each model.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from benchmarks.families import SMALLEST
from benchmarks.runner import RESULTS, Record, run_all, seconds_of, setting, short
from benchmarks.torture_models import TORCHVISION, build, image, randomize

ENOUGH_FREE = 0.3
STEPS = 2  # with each optimizer
CLIP = 5.0  # norm of the gradient: two images make the gradients of some norms huge
LARGEST = 1e4  # output that is still a sensible one
RATES = (1e-2, 1e-3, 1e-4)  # the next one when a model diverges


class DivergenceError(Exception):
    """The loss or an output is not finite: the learning rate is too high for this model."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", metavar="NAME", help="instead of all families")
    parser.add_argument("--workers", type=int, default=1, help="models at a time")
    parser.add_argument("--seconds", type=float, default=900.0, help="time limit of a model")
    parser.add_argument("--memory", type=float, default=18.0, help="memory limit in GiB")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    options = parser.parse_args()
    names = options.models or [*SMALLEST.values(), *(f"torchvision/{n}" for n in TORCHVISION)]
    into = RESULTS / "torture.jsonl"
    if options.fresh:
        into.unlink(missing_ok=True)
    records = run_all(
        measure,
        names,
        into,
        seconds=options.seconds,
        gibibytes=options.memory,
        workers=options.workers,
    )
    text = report(records)
    print(text)
    if not options.models:
        content = {"setting": setting(), "models": records}
        (RESULTS / "torture.json").write_text(json.dumps(content, indent=1) + "\n")
        (RESULTS / "torture.md").write_text(text + "\n")
    return 0 if all(is_ok(record) for record in records) else 1


# -- one model, in its own process ----------------------------------------------------------------


def measure(name: str) -> Record:
    """Torture one model, at a lower rate when it diverges."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from autoeidetic.errors import NonFiniteError

    diverged: list[str] = []
    for rate in RATES:
        record: Record = {"rate": rate, "diverged": diverged, "phase": "build"}
        try:
            record["seconds"] = seconds_of(lambda record=record: _torture(name, record))
        except (DivergenceError, NonFiniteError) as error:
            diverged.append(f"at {record['rate']:g} in {record['phase']}: {short(error)}")
            continue
        except Exception as error:  # whatever a model or the library may raise
            record["error"] = f"{record['phase']}: {short(error)}"
        return record
    return {**record, "error": f"diverged at every rate, last {diverged[-1]}"}


def _torture(name: str, record: Record) -> None:
    """Fill the record as the phases go by, so that a failure leaves what was known."""
    import autoeidetic

    torch.manual_seed(0)
    model = build(name)
    x = image(model)
    record["size"] = list(x.shape[1:])
    randomize(model)
    record["phase"] = "convert"
    net = autoeidetic.convert(model, x)
    watch = Watch(net, x, record)
    rate = record["rate"]

    with watch.phase("task 0"):
        net.prepare_for_task(0, num_classes=10)
        train(net, x, 10, torch.optim.SGD(net.parameters(), lr=rate))
        net.prune(0.5)
        net.finish_task()
    record["free"] = net.capacity().free
    watch.refer(0)

    carried = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    with watch.phase("task 1 prepared"):
        net.prepare_for_task(1, num_classes=7, on_full="reuse")
        adopt(carried, net)
    before = {key: value.clone() for key, value in net.backbone.named_parameters()}
    with watch.phase("task 1 trained with AdamW"):
        train(net, x, 7, torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.5))
    record["changed"] = changed(before, dict(net.backbone.named_parameters()))
    del before
    with watch.phase("task 1 trained with SGD"):
        train(net, x, 7, carried)
    with watch.phase("task 1 pruned"):
        net.prune(0.5)
    with watch.phase("task 1 finished"):
        net.finish_task()
    watch.refer(1)

    with watch.phase("task 2 prepared"):
        net.prepare_for_task(2, num_classes=5, on_full="reuse")
        adopt(carried, net)
    with watch.phase("task 2 trained with carried SGD"):
        train(net, x, 5, carried)
    with watch.phase("verify"):
        verified = net.verify(x)
        record["verified"] = bool(verified.ok)
        if not verified.ok:
            record["verify"] = str(verified)[:600]
    with watch.phase("task 2 finished"):
        net.finish_task()
    capacity = net.capacity()
    record["free_after"] = capacity.free
    record["levels"] = sum(share > 0 for share in (*capacity.tasks, capacity.free))


class Watch:
    """Compares the finished tasks' outputs with what they were, after every phase."""

    def __init__(self, net: Any, x: Tensor, record: Record) -> None:
        self.net, self.x, self.record = net, x, record
        self.references: dict[int, list[Tensor]] = {}
        record["moved"] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.record["phase"] = name
        yield
        for task, reference in self.references.items():
            bits = sum(map(differing, self.answer(task), reference))
            if bits:
                self.record["moved"].append({"phase": name, "task": task, "elements": bits})

    def refer(self, task: int) -> None:
        """Take the outputs of a task as what they must stay, if they can tell anything."""
        reference = self.answer(task)
        largest = max(float(leaf.abs().max()) for leaf in reference)
        if not largest < LARGEST:
            raise DivergenceError(f"an output of task {task} is {largest:g}")
        if any(differing(leaf[0], leaf[1]) == 0 for leaf in reference):
            raise ValueError(f"task {task} answers two images alike, which proves nothing")
        if any(map(differing, reference, self.answer(task))):
            raise ValueError(f"task {task} answers the same images differently the second time")
        self.references[task] = reference
        self.record["largest"] = largest

    def answer(self, task: int) -> list[Tensor]:
        """The outputs in eval mode; the network goes back to training mode."""
        self.net.eval()
        with torch.no_grad():
            output = self.net(self.x, task=task)
        self.net.train()
        return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def train(net: Any, x: Tensor, classes: int, optimizer: torch.optim.Optimizer) -> None:
    """A few ordinary steps in train mode, on images that change and random labels."""
    net.train()
    for _ in range(STEPS):
        labels = torch.randint(classes, (len(x),))
        loss = F.cross_entropy(logits(net(x + 0.1 * torch.randn_like(x))), labels)
        if not loss.isfinite():
            raise DivergenceError(f"the loss is {loss.item()}")
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()


def logits(output: Any) -> Tensor:
    """Of several outputs (auxiliary classifiers in training) the first, pooled if it is a map."""
    first = next(leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor))
    return first.flatten(2).mean(2) if first.dim() > 2 else first


def adopt(optimizer: torch.optim.Optimizer, net: nn.Module) -> None:
    """Give an optimizer the parameters it does not have yet: a new task's head."""
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    new = [p for p in net.parameters() if id(p) not in known]
    if new:
        optimizer.add_param_group({"params": new})


def differing(left: Tensor, right: Tensor) -> int:
    """How many elements are not the same, bit for bit."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return max(left.numel(), right.numel())
    if torch.equal(left, right):
        return 0
    return max(1, int((left != right).sum()))


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    """The share of elements that training changed: a network that stands still proves nothing."""
    total = sum(tensor.numel() for tensor in after.values())
    return sum(differing(before[key], after[key]) for key in after if key in before) / total


# -- the report -----------------------------------------------------------------------------------


def is_ok(record: Record) -> bool:
    return "error" not in record and not record["moved"] and bool(record["verified"])


def report(records: list[Record]) -> str:
    ok = [r for r in records if is_ok(r)]
    free = [r for r in records if r.get("free", 0.0) >= ENOUGH_FREE]
    slow = [r for r in ok if r["diverged"]]
    lines = [
        ", ".join(f"{key} {value}" for key, value in setting().items()),
        "",
        f"{len(ok)} of {len(records)} models: no bit of tasks 0 and 1 moved in any phase, and "
        f"`verify` agrees. In {len(free)} at least {ENOUGH_FREE:.0%} of the backbone's elements "
        f"are free after `prune(0.5)` of task 0"
        + (f"; {len(slow)} were trained at a lower rate." if slow else "."),
        "",
        *_failures(records),
        "| model | image | ok | bits moved | free after task 0 | after task 2 | changed by task 1 "
        "| rate | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
        *map(_row, records),
    ]
    return "\n".join(lines)


def _failures(records: list[Record]) -> list[str]:
    lines = []
    bad = [r for r in records if not is_ok(r)]
    if bad:
        lines += ["What failed:", "", *[f"- {r['model']}: {_cause(r)}" for r in bad], ""]
    low = [r for r in records if "free" in r and r["free"] < ENOUGH_FREE]
    if low:
        lines += [f"Less than {ENOUGH_FREE:.0%} free after task 0:", ""]
        lines += [f"- {r['model']}: {r['free']:.1%}" for r in low] + [""]
    return lines


def _cause(record: Record) -> str:
    parts = [record["error"]] if "error" in record else []
    parts += [
        f"{m['elements']} elements of task {m['task']} moved in {m['phase']!r}"
        for m in record.get("moved", [])[:1]
    ]
    if record.get("verified") is False:
        parts.append(f"verify: {record['verify'].strip().splitlines()[0]}")
    return "; ".join(parts)


def _row(record: Record) -> str:
    moved = sum(m["elements"] for m in record.get("moved", []))
    cells = [
        record["model"],
        "x".join(map(str, record.get("size", []))),
        "yes" if is_ok(record) else "no",
        str(moved) if "moved" in record else "",
        *(_percent(record.get(key)) for key in ("free", "free_after", "changed")),
        f"{record['rate']:g}" if "rate" in record else "",
        f"{record['seconds']:.0f}" if "seconds" in record else "",
    ]
    return f"| {' | '.join(cells)} |"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


if __name__ == "__main__":
    raise SystemExit(main())
