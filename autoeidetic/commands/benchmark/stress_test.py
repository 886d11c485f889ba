"""The stages ``verify`` and ``widen``: tasks in a row on one model, with hostile optimizers.

After every phase the outputs of finished tasks must be the same bits as before. The steps are
described in benchmarks/README.md.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from ...common.bits import different
from ...common.inputs import CallInputs
from ...tasks.snapshot import Snapshot
from .models import as_example, build, logits
from .runner import Record, error_line, is_lack_of_memory, seconds_of
from .stress_inputs import CLASSES, randomize, small_batch, varied

WIDTH = 0.25  # of a column, in parts of the model
STEPS = 2  # training steps with each optimizer
CLIP = 5.0  # gradient norm: norms over two images can produce huge gradients
LARGEST = 1e4  # larger outputs count as divergence
RATES = (1e-2, 1e-3, 1e-4)  # tried in this order until a model does not diverge


class DivergenceError(Exception):
    """The loss or an output is not finite: the learning rate is too high for this model."""


def measure(name: str) -> Record:
    """Run three tasks on one model, with a lower learning rate when it diverges."""
    return _measured(_run, name)


def measure_widened(name: str) -> Record:
    """The same with a network that is widened after the first task, and once more."""
    return _measured(_run_widened, name)


def _measured(run: Callable[[str, Record], None], name: str) -> Record:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from ...errors import NonFiniteError

    diverged: list[str] = []
    # A model that diverges proves nothing; a lower rate gives it a fair test.
    for rate in RATES:
        record: Record = {"rate": rate, "diverged": diverged, "phase": "build"}
        try:
            record["seconds"] = seconds_of(partial(run, name, record))
        except (DivergenceError, NonFiniteError) as error:
            diverged.append(f"at {record['rate']:g} in {record['phase']}: {error_line(error)}")
            continue
        except Exception as error:  # a model or the library may raise anything
            if is_lack_of_memory(error):
                raise
            record["error"] = f"{record['phase']}: {error_line(error)}"
        return record
    return {**record, "error": f"diverged at every rate, last {diverged[-1]}"}


def _run(name: str, record: Record) -> None:
    """Train, prune and finish three tasks.

    The record is filled phase by phase, so that it is kept up to a failure.
    """
    net, x, watch = _converted(name, record)
    rate = record["rate"]

    # Task 0    SGD, half pruned, finished                     its outputs become the reference
    # Task 1    AdamW with strong decay, then SGD; finished    a second reference
    # Task 2    the SGD of task 1 again, then verify           neither reference may have moved
    with watch.phase("task 0"):
        net.prepare_for_task(0, num_classes=CLASSES)
        train(net, x, CLASSES, torch.optim.SGD(net.parameters(), lr=rate))
        net.prune(0.5)
        net.finish_task()
    record["free"] = net.capacity().free
    watch.refer(0)

    # One optimizer with momentum lives through tasks 1 and 2: its buffers, filled by task 1, would
    # move frozen values in task 2 if they were not protected.
    carried = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    with watch.phase("task 1 prepared"):
        net.prepare_for_task(1, num_classes=7, on_full="reuse")
        adopt(carried, net)
    # A snapshot on disk, because a second copy of a giant does not fit into memory.
    before = Snapshot(dict(net.backbone.named_parameters()))
    with watch.phase("task 1 trained with AdamW"):
        train(net, x, 7, torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.5))
    record["changed"] = changed(before.load(), dict(net.backbone.named_parameters()))
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
        verified = net.verify(*x.args, **x.kwargs)
        record["verified"] = bool(verified.ok)
        if not verified.ok:
            record["verify"] = str(verified)[:600]
    with watch.phase("task 2 finished"):
        net.finish_task()
    capacity = net.capacity()
    record["free_after"] = capacity.free
    record["levels"] = sum(share > 0 for share in (*capacity.tasks, capacity.free))


def _run_widened(name: str, record: Record) -> None:
    """Task 0, a column with two tasks, another column with one.

    One optimizer with momentum lives through all tasks.
    """
    net, x, watch = _converted(name, record)
    record["columns"] = []
    carried = torch.optim.SGD(net.parameters(), lr=record["rate"], momentum=0.9, weight_decay=0.1)
    for task, classes in enumerate((CLASSES, 7, 5, 3)):
        if task in (1, 3):
            with watch.phase(f"widened for task {task}"):
                start = time.perf_counter()
                about = net.widen(WIDTH)
                seconds = time.perf_counter() - start
            # a record names no folder of the machine that it was made on
            reason = re.sub(r"\S*site-packages/", "", about.reason)
            record["columns"].append({**asdict(about), "reason": reason, "seconds": seconds})
        with watch.phase(f"task {task} prepared"):
            net.prepare_for_task(task, num_classes=classes, on_full="reuse")
            adopt(carried, net)
        with watch.phase(f"task {task} trained with AdamW"):
            decayed = torch.optim.AdamW(net.parameters(), lr=record["rate"], weight_decay=0.5)
            train(net, x, classes, decayed)
        with watch.phase(f"task {task} trained with carried SGD"):
            train(net, x, classes, carried)
        with watch.phase(f"task {task} finished"):
            net.prune(0.5)
            net.finish_task()
        watch.refer(task)
    record["phase"] = "verify"
    verified = net.verify(*x.args, **x.kwargs, rounds=1)
    record["verified"] = bool(verified.ok)
    if not verified.ok:
        record["verify"] = str(verified)[:600]


def _converted(name: str, record: Record) -> tuple[Any, CallInputs, Watch]:
    """A network of a model with random values, and the watch over its answers."""
    import autoeidetic

    torch.manual_seed(0)
    model = build(name, CLASSES)
    x = small_batch(model)
    record["size"] = list(pytree.tree_leaves((x.args, x.kwargs))[0].shape[1:])
    randomize(model)
    record["phase"] = "convert"
    net = autoeidetic.convert(model, as_example(x), inplace=True, rehearse=False)
    return net, x, Watch(net, x, record)


class Watch:
    """Compares the outputs of finished tasks with their references after every phase."""

    def __init__(self, net: Any, x: CallInputs, record: Record) -> None:
        self.net, self.x, self.record = net, x, record
        self.references: dict[int, list[Tensor]] = {}
        record["moved"] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.record["phase"] = name
        yield
        # All finished tasks after every phase: the phase that moved a bit is known at once.
        for task, reference in self.references.items():
            bits = sum(map(differing, self.answer(task), reference))
            if bits:
                self.record["moved"].append({"phase": name, "task": task, "elements": bits})

    def refer(self, task: int) -> None:
        """Store the outputs of a task as its reference.

        Uninformative outputs are rejected: too large, the same for both images, or not repeatable.
        """
        reference = self.answer(task)
        largest = max(float(leaf.abs().max()) for leaf in reference)
        # Not ">=": NaN must be rejected as well.
        if not largest < LARGEST:
            raise DivergenceError(f"an output of task {task} is {largest:g}")
        if any(differing(leaf[0], leaf[1]) == 0 for leaf in reference):
            raise DivergenceError(
                f"task {task} gives the same outputs for two images, which proves nothing"
            )
        if any(map(differing, reference, self.answer(task))):
            raise ValueError(f"task {task} gives other outputs for the same images the second time")
        self.references[task] = reference
        self.record["largest"] = largest

    def answer(self, task: int) -> list[Tensor]:
        """The outputs of a task in eval mode; the network returns to training mode."""
        self.net.eval()
        with torch.no_grad():
            output = self.net(*self.x.args, **self.x.kwargs, task=task)
        self.net.train()
        return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def train(net: Any, x: CallInputs, classes: int, optimizer: torch.optim.Optimizer) -> None:
    """A few training steps on varied inputs with random labels."""
    net.train()
    for _ in range(STEPS):
        shown = varied(x)
        answer = logits(net(*shown.args, **shown.kwargs))
        loss = F.cross_entropy(answer, torch.randint(classes, answer.shape[:1]))
        if not loss.isfinite():
            raise DivergenceError(f"the loss is {loss.item()}")
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
    optimizer.zero_grad()  # frees the memory of the gradients


def adopt(optimizer: torch.optim.Optimizer, net: nn.Module) -> None:
    """Add parameters that the optimizer does not have yet: the head of a new task."""
    # By id: "in" would compare the values of tensors.
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    new = [p for p in net.parameters() if id(p) not in known]
    if new:
        optimizer.add_param_group({"params": new})


def differing(left: Tensor, right: Tensor) -> int:
    """The number of elements whose bits differ."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return max(left.numel(), right.numel())
    return int(different(left, right).sum())


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    """The share of elements that training changed; without changes the test proves nothing."""
    total = sum(tensor.numel() for tensor in after.values())
    return sum(differing(before[key], after[key]) for key in after if key in before) / total


def is_ok(record: Record) -> bool:
    return "error" not in record and not record["moved"] and bool(record["verified"])


def cause(record: Record) -> str:
    """Why a record does not pass; empty when it does."""
    parts = [record["error"]] if "error" in record else []
    parts += [
        f"{m['elements']} elements of task {m['task']} moved in {m['phase']!r}"
        for m in record.get("moved", [])[:1]
    ]
    if record.get("verified") is False:
        parts.append(f"verify: {record['verify'].strip().splitlines()[0]}")
    return "; ".join(parts)
