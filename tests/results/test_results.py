"""Metrics, evaluations and the record of a run, against numbers worked out by hand."""

from __future__ import annotations

import csv
import errno
import functools
import importlib.metadata
import itertools
import json
import math
import os
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autoeidetic
from autoeidetic import Run, evaluate
from autoeidetic.common import distributed, files
from autoeidetic.common.digests import Hasher
from autoeidetic.errors import InputError, TaskError
from autoeidetic.results import (
    AccuracyMatrix,
    Bitwise,
    Digest,
    Evaluation,
    TaskResult,
    accumulator,
    accuracy,
)
from autoeidetic.results.metric import judge
from autoeidetic.tasks.capacity import Capacity, Share
from autoeidetic.tasks.task import Task

NAN = math.nan


# -- accuracy -------------------------------------------------------------------------------------


def test_accuracy_of_classes() -> None:
    output = torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 5.0], [0.0, 1.0, 0.0]])
    assert accuracy(output, torch.tensor([1, 0, 1, 1])).tolist() == [1, 1, 0, 1]
    assert accuracy(output, torch.tensor([1, 0, 1, 1], dtype=torch.uint8)).mean() == 0.75


def test_accuracy_leaves_out_ignored_targets() -> None:
    output = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 9.0]])
    assert accuracy(output, torch.tensor([1, -100, 0])).tolist() == [1, 0]


def test_accuracy_of_pixels() -> None:
    best = torch.tensor([[[0, 1], [1, 1]], [[0, 0], [1, 0]]])
    output = nn.functional.one_hot(best, 3).permute(0, 3, 1, 2).float()
    target = torch.tensor([[[0, 1], [-100, 0]], [[0, 2], [1, -100]]])
    assert output.shape == (2, 3, 2, 2)
    assert accuracy(output, target).tolist() == [1, 1, 0, 1, 0, 1]
    judged = judge(output, target)
    assert judged.label.tolist() == [0, 1, 0, 0, 2, 1]
    assert judged.classes == 3


def test_accuracy_of_labels() -> None:
    output = torch.tensor([[1.0, -1.0, 0.5], [-2.0, 3.0, -0.1]])
    target = torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, NAN]])
    assert accuracy(output, target).tolist() == [1, 0, 1, 1, 1]
    assert judge(output, target).label.tolist() == [0, 1, 2, 0, 1]
    assert accuracy(output, target.nan_to_num() > 0.5).mean() == 5 / 6  # booleans are labels too
    assert accuracy(output[:, 0], target[:, 0]).tolist() == [1, 1]
    dense = torch.tensor([[[1.0, -1.0], [1.0, 1.0]]])  # one sample, two labels, two places
    judged = judge(dense, torch.tensor([[[1.0, 1.0], [0.0, 1.0]]]))
    assert judged.right.tolist() == [True, False, False, True]
    assert judged.label.tolist() == [0, 0, 1, 1]


def test_accuracy_of_the_first_tensor() -> None:
    logits, other = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    assert accuracy({"logits": logits, "other": other}, torch.tensor([1])).tolist() == [1]


@pytest.mark.parametrize(
    ("output", "target", "fact"),
    [
        (torch.zeros(4, 3), torch.zeros(5, dtype=torch.long), r"\(5,\).*\(4, 3\)"),
        (torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.long), r"\(4, 3\).*int64"),
        (torch.zeros(4, 3), torch.zeros(4), r"\(4,\).*float32"),
        (torch.zeros(4), torch.zeros(4, dtype=torch.long), r"outputs of shape \(4,\)"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, dtype=torch.long), r"\(2, 4\)"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), "a target is 3, and the output has 3 classes"),
        (torch.zeros(2, 1), torch.tensor([0, 1]), "a target is 1, and the output has 1 classes"),
        (torch.zeros(2, 3), torch.tensor([0, -1]), "a target is -1"),
        ("text", torch.tensor([0]), "the output is a str"),
        (torch.zeros(1, 3), None, "the target is a NoneType"),
    ],
    ids=range(10),
)
def test_accuracy_of_what_does_not_fit(output: Any, target: Any, fact: str) -> None:
    with pytest.raises(InputError, match=fact) as raised:
        accuracy(output, target)
    assert "metric=" in raised.value.remedy


# -- metrics --------------------------------------------------------------------------------------


def test_samples_count_one_each_whatever_their_batch() -> None:
    measure = accumulator()
    measure.update(torch.tensor([[1.0, 0.0]] * 3), torch.tensor([0, 0, 0]))
    measure.update(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert measure.compute() == 0.75  # the mean of the batches is 0.5
    measure.reset()
    assert math.isnan(measure.compute())
    assert measure.name == "accuracy"


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_a_number_for_a_batch_counts_for_its_samples(kind: Callable[[float], Any]) -> None:
    measure = accumulator(lambda output, target: kind(float(len(target))))
    measure.update(None, torch.zeros(3))
    measure.update(None, torch.zeros(1))
    assert measure.compute() == (3 * 3 + 1) / 4


def test_a_function_without_a_name() -> None:
    assert accumulator(functools.partial(accuracy)).name == "partial"


class Fake:
    """Like a metric of torchmetrics: the share of samples of the rarer kind of answer."""

    def __init__(self) -> None:
        self.device: Any = None
        self.resets = 0
        self.seen: list[bool] = []

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        raise AssertionError("update is there for that")

    def to(self, device: Any) -> Fake:
        self.device = device
        return self

    def update(self, output: Tensor, target: Tensor) -> None:
        self.seen += (output.argmax(1) == target).tolist()

    def compute(self) -> Tensor:
        right = sum(self.seen)
        return torch.tensor(min(right, len(self.seen) - right) / len(self.seen))

    def reset(self) -> None:
        self.seen, self.resets = [], self.resets + 1


def test_an_object_gathers_by_itself() -> None:
    fake = Fake()
    measure = accumulator(fake, device="cpu")
    measure.update(torch.tensor([[1.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1]))
    assert measure.compute() == 0.25
    measure.reset()
    assert (fake.device, fake.seen, measure.name) == ("cpu", [], "Fake")


def test_metrics_that_are_none() -> None:
    with pytest.raises(InputError, match="metric=Fake is a class"):
        accumulator(Fake)
    with pytest.raises(InputError, match="metric is a int"):
        accumulator(3)
    with pytest.raises(InputError, match="metric '<lambda>' returned a dict"):
        accumulator(lambda output, target: {}).update(None, torch.zeros(1))
    fake = Fake()
    fake.compute = lambda: torch.zeros(3)  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"metric 'Fake' computed a Tensor of shape \(3,\)"):
        accumulator(fake).compute()


# -- the matrix -----------------------------------------------------------------------------------


def test_matrix_by_hand() -> None:
    matrix = AccuracyMatrix([[0.5], [0.75, 1.0], [0.25, 0.5, 0.75]], ["a", "b", "c"])
    assert matrix.average() == 0.5
    assert matrix.backward_transfer() == ((0.25 - 0.5) + (0.5 - 1.0)) / 2
    assert matrix.forgetting() == ((0.75 - 0.25) + (1.0 - 0.5)) / 2
    assert matrix.diagonal == (0.5, 1.0, 0.75)
    assert matrix.forward_transfer([0.25, 1.0, 1.0]) == (0.25 + 0.0 - 0.25) / 3
    assert matrix.forward_transfer({2: 0.5, 0: 0.25, 1: 1.0}) == (0.25 + 0.0 + 0.25) / 3
    assert [math.isnan(v) for row in matrix.rows for v in row] == [
        False, True, True, False, False, True, False, False, False,
    ]  # fmt: skip
    assert matrix.to_dict()["average"] == 0.5
    assert matrix.to_dict()["names"] == ["a", "b", "c"]
    assert "backward transfer -0.375" in str(matrix)
    assert "<pre>" in matrix._repr_html_()


def test_nothing_forgotten_is_exactly_zero() -> None:
    values = [1 / 3, 0.1, 0.7, 2 / 7, 0.9]
    matrix = AccuracyMatrix([values[: n + 1] for n in range(5)])
    assert matrix.backward_transfer() == 0.0
    assert matrix.forgetting() == 0.0
    assert "backward transfer 0, forgetting 0" in str(matrix)
    moved = [*values[:-2], math.nextafter(values[-2], 1), values[-1]]
    matrix = AccuracyMatrix([*(values[: n + 1] for n in range(4)), moved])
    assert matrix.backward_transfer() > 0.0
    assert "backward transfer 0," not in str(matrix)


def test_forgetting_is_from_the_best() -> None:
    rising = AccuracyMatrix([[0.5], [1.0, 1.0], [0.75, 1.0, 1.0]])
    assert rising.backward_transfer() == 0.125
    assert rising.forgetting() == 0.125
    assert AccuracyMatrix([[0.5], [1.0, 1.0]]).forgetting() == -0.5  # better than ever


def test_what_is_not_known_is_nan() -> None:
    assert math.isnan(AccuracyMatrix([[0.5]]).backward_transfer())
    assert math.isnan(AccuracyMatrix([[0.5]]).forgetting())
    assert math.isnan(AccuracyMatrix([]).average())
    gap = AccuracyMatrix([[NAN], [0.5, 0.5]])
    assert math.isnan(gap.backward_transfer())
    assert math.isnan(gap.forgetting())
    assert gap.average() == 0.5
    assert math.isnan(AccuracyMatrix([[0.5], [0.5, 0.5], [0.5, NAN, 0.5]]).average())
    assert math.isnan(AccuracyMatrix([[1.0], [NAN, 1.0], [0.5, 1.0, 1.0]]).forgetting())
    assert math.isinf(AccuracyMatrix([[math.inf], [1.0, math.inf]]).average())


def test_matrices_that_are_none() -> None:
    with pytest.raises(InputError, match="row 1 has 1 accuracies"):
        AccuracyMatrix([[0.5], [0.5]])
    with pytest.raises(InputError, match="row 0 has 2 accuracies"):
        AccuracyMatrix([[0.5, 0.6], [0.5, 0.6]])
    with pytest.raises(InputError, match="1 names for 2 tasks"):
        AccuracyMatrix([[0.5], [0.5, 0.5]], ["a"])
    with pytest.raises(InputError, match=r"alone are given for tasks \[0\], and there are 2"):
        AccuracyMatrix([[0.5], [0.5, 0.5]]).forward_transfer([0.5])


# -- digests --------------------------------------------------------------------------------------


def digest(value: Any) -> str:
    hasher = Hasher()
    hasher.update(value)
    return hasher.digest()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
def test_one_bit_is_another_digest(dtype: torch.dtype) -> None:
    value = torch.arange(24).to(dtype).reshape(4, 6)
    assert digest(value) == digest(value.clone())
    assert digest(value) == digest(value.t().contiguous().t())  # whatever its strides
    moved = value.clone()
    moved.view(torch.uint8)[2, 7] ^= 1
    assert digest(moved) != digest(value)
    assert digest(value.reshape(6, 4)) != digest(value)


def test_structures_types_and_nan_have_digests() -> None:
    x = torch.tensor([1.0, NAN])
    assert digest({"a": x, "b": [x]}) == digest({"a": x.clone(), "b": [x.clone()]})
    assert digest(x) != digest(x.double())
    assert digest([x[:1], x[1:]]) != digest([x])
    assert digest(torch.zeros(())) != digest(torch.zeros(1))
    assert digest((x, None)) != digest((x,))
    assert digest(torch.zeros(0)) == digest(torch.zeros(0))


# -- evaluate -------------------------------------------------------------------------------------


def batches(seed: int, classes: int, sizes: tuple[int, ...] = (5, 5, 2)) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, 4, generator=generator),
            torch.randint(classes, (size,), generator=generator),
        )
        for size in sizes
    ]


LOADERS = [batches(0, 2), batches(1, 3), batches(2, 2)]


@pytest.fixture
def net() -> Any:
    """Task 0 is finished, task 1 is open."""
    model = nn.Sequential(nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2))
    net = autoeidetic.convert(model, torch.randn(2, 4))
    net.prepare_for_task(0, num_classes=2, name="coin")
    net.prune(0.5)
    net.finish_task()
    net.prepare_for_task(1, num_classes=3)
    return net


def test_evaluate_by_hand(net: Any) -> None:
    found = evaluate(net, LOADERS)
    net.eval()
    for task, classes in enumerate((2, 3)):
        x = torch.cat([x for x, _ in LOADERS[task]])
        y = torch.cat([y for _, y in LOADERS[task]])
        with torch.no_grad():
            right = net(x, task=task).argmax(1) == y
        result = found.tasks[task]
        assert result.samples == 12
        assert result.accuracy == found.accuracy[task] == float(right.double().mean())
        assert result.per_class == tuple(
            float(right[y == label].double().mean()) for label in range(classes)
        )
        assert (result.agnostic, result.agnostic_per_class) == (None, None)
    assert [result.name for result in found.tasks] == ["coin", "task 1"]
    assert found.average == (found.accuracy[0] + found.accuracy[1]) / 2
    assert found.agnostic is None
    assert found.confusion is None
    assert set(found.digests) == {0}  # task 1 is open
    assert found.to_dict()["tasks"][0]["digest"]["outputs"] == found.digests[0].outputs
    assert str(found).splitlines()[0].split() == ["task", "samples", "accuracy", "worst", "class"]
    assert "coin" in found._repr_html_()


def test_evaluate_changes_nothing(net: Any) -> None:
    net.train()
    net.backbone[1].eval()  # somebody's own choice
    modes = [module.training for module in net.modules()]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
    loader = torch.utils.data.DataLoader(data, batch_size=3, shuffle=True)
    torch.manual_seed(3)
    evaluate(net, [loader, loader])
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    with pytest.raises(InputError, match="gave nothing"):
        evaluate(net, [[], []])
    assert [module.training for module in net.modules()] == modes


def test_digests_over_time(net: Any) -> None:
    first = evaluate(net, LOADERS).digests[0]
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    nn.functional.cross_entropy(net(LOADERS[1][0][0]), LOADERS[1][0][1]).backward()
    optimizer.step()
    net.finish_task()
    later = evaluate(net, LOADERS)
    assert later.digests[0] == first
    assert set(later.digests) == {0, 1}
    bias = net.heads["0"][next(iter(net.heads["0"]))].bias
    with torch.no_grad():
        bias.view(torch.int32)[0] ^= 1 << 20
    net.pins.impose = lambda: None  # or it would be put back
    net.pins.before_forward = lambda learning: None
    moved = evaluate(net, LOADERS).digests[0]
    assert moved.inputs == first.inputs
    assert moved.outputs != first.outputs


def test_digests_over_a_reference(net: Any) -> None:
    x = torch.randn(3, 4)
    first = evaluate(net, LOADERS, reference=x).digests[0]
    assert first == evaluate(net, [batches(7, 2), batches(8, 3)], reference=x).digests[0]
    assert first != evaluate(net, LOADERS, reference=x + 1).digests[0]
    shuffled = [[LOADERS[0][1], LOADERS[0][0], LOADERS[0][2]], LOADERS[1]]
    assert evaluate(net, shuffled).digests[0].inputs != evaluate(net, LOADERS).digests[0].inputs


def test_which_tasks(net: Any) -> None:
    assert set(evaluate(net, LOADERS, tasks=[1]).accuracy) == {1}
    assert set(evaluate(net, {1: LOADERS[1]}, tasks=[1]).accuracy) == {1}
    with pytest.raises(InputError, match="there is no loader for task 0"):
        evaluate(net, {1: LOADERS[1]})
    with pytest.raises(InputError, match="there is no loader for task 1"):
        evaluate(net, LOADERS[:1])
    with pytest.raises(TaskError, match="there is no task 2"):
        evaluate(net, LOADERS, tasks=[2])
    fresh = autoeidetic.convert(nn.Sequential(nn.Linear(2, 2)), torch.randn(2, 2))
    with pytest.raises(TaskError, match="no task yet"):
        evaluate(fresh, LOADERS)


def test_a_generator_is_read_once(net: Any) -> None:
    once = [iter(LOADERS[0]), iter(LOADERS[1])]
    evaluate(net, once)
    with pytest.raises(InputError, match=r"loader of task 0 gave nothing.*\n.*generator"):
        evaluate(net, once)


def test_batches_that_are_none(net: Any) -> None:
    with pytest.raises(InputError, match=r"a batch is a Tensor, not a pair"):
        evaluate(net, [[torch.zeros(2, 4)], LOADERS[1]])
    with pytest.raises(InputError, match="a target is 7"):
        evaluate(net, [[(torch.zeros(1, 4), torch.tensor([7]))], LOADERS[1]])


def test_own_metrics(net: Any) -> None:
    def spread(output: Tensor, target: Tensor) -> Tensor:
        return output.amax(1) - output.amin(1)

    fake = Fake()
    found = evaluate(net, LOADERS, metric={0: spread, 1: fake})
    with torch.no_grad():
        outputs = torch.cat([net.eval()(x, task=0) for x, _ in LOADERS[0]])
    assert found.accuracy[0] == pytest.approx(float(spread(outputs, outputs).mean()), abs=1e-6)
    assert found.metric == "spread, Fake"
    assert fake.resets == 1
    assert fake.device == torch.device("cpu")
    assert len(found.tasks[0].per_class) == 2  # class numbers are class numbers
    regression = [[(x, x[:, :2].clone()) for x, _ in LOADERS[0]]]
    found = evaluate(net, regression, tasks=[0], metric=lambda o, t: (o - t).square().mean(1))
    assert found.tasks[0].per_class == ()


class Two(nn.Module):
    """Two inputs; labels or pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(2, 8, 1)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head(self.body(torch.cat([left, right], 1)).relu())


@pytest.mark.parametrize("form", [dict, tuple, list])
def test_inputs_of_any_form_and_pixels(form: type) -> None:
    left, right = torch.randn(3, 1, 2, 2), torch.randn(3, 1, 2, 2)
    inputs = {"left": left, "right": right} if form is dict else form((left, right))
    net = autoeidetic.convert(Two(), (left, right))
    net.prepare_for_task(0, num_classes=3)
    target = torch.randint(3, (3, 2, 2))
    target[0, 0, 0] = -100
    result = evaluate(net, [[(inputs, target)]]).tasks[0]
    answers = net.eval()(left, right).argmax(1)
    known = target != -100
    assert result.accuracy == int((answers == target)[known].sum()) / 11
    assert result.samples == 3
    first = known & (target == 0)
    assert result.per_class[0] == float((answers == 0)[first].double().mean())


def test_classes_without_samples_are_nan(net: Any) -> None:
    loader = [(torch.zeros(2, 4), torch.tensor([2, 2]))]
    result = evaluate(net, [LOADERS[0], loader]).tasks[1]
    assert [math.isnan(share) for share in result.per_class] == [True, True, False]
    assert "null" in files.to_json(result.per_class).decode()


def test_progress(net: Any, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(net, LOADERS, progress=True)
    assert "coin: accuracy 0." in capsys.readouterr().err
    evaluate(net, LOADERS)
    assert capsys.readouterr().err == ""


# -- the router -----------------------------------------------------------------------------------


def test_router_by_hand(net: Any) -> None:
    net.finish_task()
    says = {  # by the first number of an input: (task, label)
        0.0: (0, 0), 1.0: (0, 1), 2.0: (1, 2), 3.0: (1, 0),
    }  # fmt: skip

    def predict(x: Tensor) -> Any:
        pairs = torch.tensor([says[float(row[0])] for row in x])
        return types.SimpleNamespace(task=pairs[:, 0], label=pairs[:, 1])

    def data(firsts: list[float], labels: list[int]) -> Any:
        x = torch.zeros(len(firsts), 4)
        x[:, 0] = torch.tensor(firsts)
        return [(x, torch.tensor(labels))]

    net.router = types.SimpleNamespace(tasks=2)
    net.predict = predict
    found = evaluate(net, [data([0, 1, 2, 1], [0, 0, 1, 1]), data([2, 3, 0, 0], [2, 1, 0, 0])])
    assert found.confusion == ((3, 1), (2, 2))
    assert found.tasks[0].agnostic == 2 / 4
    assert found.tasks[0].agnostic_per_class == (0.5, 0.5)
    assert found.tasks[1].agnostic == 1 / 4
    assert found.tasks[1].agnostic_per_class == (0.0, 0.0, 1.0)
    assert found.agnostic == (1 / 2 + 1 / 4) / 2
    assert "task unknown" in str(found)
    net.router = types.SimpleNamespace(tasks=1)
    found = evaluate(net, LOADERS)
    assert found.confusion is None
    assert found.note == "the router knows 1 of 2 finished tasks: not measured"
    assert found.note in str(found)


def test_the_real_router(net: Any) -> None:
    net.train_router([LOADERS[0]], epochs=2, progress=False)
    found = evaluate(net, LOADERS)  # task 1 is open: the router does not know it
    assert found.confusion == ((12, 0), (0, 0))
    assert found.tasks[0].agnostic == found.accuracy[0]
    assert found.tasks[1].agnostic is None


# -- several processes ----------------------------------------------------------------------------

SECOND = """
    import sys, torch
    from torch import distributed
    sys.path.insert(0, {tests!r})
    distributed.init_process_group("gloo", init_method={store!r}, rank=1, world_size=2)
    from results import test_results as own
    own.in_two_processes(1)
    distributed.destroy_process_group()
"""


class Standin(nn.Module):
    """What an evaluation needs of a network, without the time that converting one takes."""

    tasks = (Task(0, "coin", {"head": 2}, finished=True, seed=0),)
    router = None

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2, bias=False)
        nn.init.eye_(self.head.weight)

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.head(x)


def in_two_processes(rank: int) -> Evaluation:
    """Each process has every other batch."""
    net: Any = Standin()
    return evaluate(net, [LOADERS[0][rank::2]])


@pytest.mark.slow
def test_two_processes_measure_together(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'store'}"
    code = textwrap.dedent(SECOND).format(tests=str(Path(__file__).parents[1]), store=store)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], env=environment
    ) as second:
        torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=2)
        try:
            found = in_two_processes(0)
            net: Any = Standin()
            whole = evaluate(net, [LOADERS[0]], together=False)
        finally:
            torch.distributed.destroy_process_group()
    assert second.returncode == 0
    assert found.tasks[0].samples == 12
    assert found.accuracy == whole.accuracy
    assert found.tasks[0].per_class == whole.tasks[0].per_class
    assert found.digests[0] != whole.digests[0]  # of two parts


def test_only_the_first_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "rank", lambda: 1)
    run = Run(tmp_path / "run")
    for _, step in steps(1):
        step(run)
    assert run.tasks == (0,)
    assert not run.directory.exists()


# -- the record of a run --------------------------------------------------------------------------


def evaluation(*accuracies: float, outputs: str = "same", inputs: str = "asked") -> Evaluation:
    """Of finished tasks."""
    return Evaluation(
        "accuracy",
        tuple(
            TaskResult(
                task, f"task {task}", True, 10, value, (value, NAN), None, None,
                Digest(f"{inputs} {task}", f"{outputs} {task}"),
            )
            for task, value in enumerate(accuracies)
        ),
        None,
    )  # fmt: skip


def capacity(tasks: int) -> Capacity:
    shares = tuple(0.25 for _ in range(tasks))
    group = Share('layer, "1"', 8, tuple(2 for _ in range(tasks)), 8 - 2 * tasks)
    reuse = tuple(tuple(float(s == t) for s in range(tasks)) for t in range(tasks))
    return Capacity(1 - sum(shares), shares, (group,), (group,), reuse)


DONE = (0.5, 0.75, 1.0)


def steps(tasks: int = 2) -> list[tuple[int, Callable[[Run], None]]]:
    """(task, what is recorded) of a run, one after another."""
    made: list[tuple[int, Callable[[Run], None]]] = []
    for task in range(tasks):
        for n, (phase, round_) in enumerate([("train", 0), ("train", 0), ("prune", 1)]):
            row = {"task": task, "phase": phase, "round": round_, "epoch": n, "loss": 1 / (n + 3)}
            made.append((task, lambda run, row=row: run.epoch(**row)))
        done = evaluation(*DONE[: task + 1])
        made.append((task, lambda run, t=task, done=done: run.after_task(t, done, capacity(t + 1))))
    return made


def begin(directory: Path) -> Run:
    return Run(directory, config={"lr": 0.1}, seeds=1, date="2025-01-31", draw=False)


def contents(directory: Path) -> dict[str, bytes]:
    """The record; TensorBoard's events are a log with times in it, and come on top."""
    return {
        str(p.relative_to(directory)): p.read_bytes()
        for p in directory.rglob("*")
        if p.is_file() and p.parent.name != "tensorboard"
    }


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_files_of_a_run(tmp_path: Path) -> None:
    run = begin(tmp_path)
    for _, step in steps():
        step(run)
    rows = table(tmp_path / "metrics.csv")
    assert [(r["task"], r["phase"], r["round"], r["epoch"]) for r in rows] == [
        (task, *rest)
        for task in "01"
        for rest in (("train", "0", "0"), ("train", "0", "1"), ("prune", "1", "2"))
    ]
    assert float(rows[1]["loss"]) == 0.25
    assert rows[1]["accuracy"] == ""
    assert list(rows[0]) == "task phase round epoch loss accuracy pruned free lr seconds".split()
    tasks = table(tmp_path / "tasks.csv")
    assert [(t["name"], t["accuracy"], t["average"], t["free"]) for t in tasks] == [
        ("task 0", "0.5", "0.5", "0.75"),
        ("task 1", "0.75", "0.625", "0.5"),
    ]
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["accuracy"]["rows"] == [[0.5, None], [0.5, 0.75]]
    assert results["accuracy"]["average"] == 0.625
    assert results["accuracy"]["backward_transfer"] == 0.0
    assert results["forward_transfer"] is None
    assert results["bitwise"]["ok"] is True
    assert results["bitwise"]["tasks"][0]["outputs"] == {"0": "same 0", "1": "same 0"}
    assert results["tasks"][1]["evaluation"]["tasks"][1]["per_class"] == [0.75, None]
    assert results["tasks"][1]["capacity"]["groups"][0]["tasks"] == [2, 2]
    assert results["tasks"][1]["capacity"]["free"] == 0.5
    assert (results["config"], results["seeds"]) == ({"lr": 0.1}, {"torch": 1})
    assert results["date"] == "2025-01-31"
    assert results["versions"]["torch"] == importlib.metadata.version("torch")
    assert results["tasks"][0]["versions"] == results["versions"]
    assert results["metric"] == "accuracy"
    assert "no bit of a finished task has moved" in str(run)
    assert "average 0.625" in run._repr_html_()


def test_no_nan_in_json(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.after_task(0, evaluation(NAN), capacity(1), seconds=math.inf)
    text = (tmp_path / "results.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    again = Run.resume(tmp_path, draw=False)
    assert math.isnan(again.matrix.rows[0][0])
    run.epoch(task=1, epoch=0, loss=NAN, lr=math.inf)
    (row,) = Run.resume(tmp_path, draw=False).rows
    assert math.isnan(row["loss"])
    assert row["lr"] == math.inf


def test_a_task_to_come_is_not_in_the_matrix(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.after_task(0, evaluation(0.5, 0.1), capacity(1))  # task 1 was open already
    assert run.matrix.rows == ((0.5,),)
    assert len(run.to_dict()["tasks"][0]["evaluation"]["tasks"]) == 2


def test_defaults(tmp_path: Path) -> None:
    torch.manual_seed(11)
    before = datetime.now().astimezone().replace(microsecond=0)
    run = Run(tmp_path, draw=False)
    about = run.to_dict()
    assert about["seeds"] == {"torch": 11}
    assert before <= datetime.fromisoformat(about["date"]) <= datetime.now().astimezone()
    assert Run(tmp_path / "a", seeds={"numpy": 2}, draw=False).to_dict()["seeds"] == {"numpy": 2}
    assert Run(tmp_path / "b", date=datetime(2025, 1, 2), draw=False).to_dict()["date"] == (
        "2025-01-02T00:00:00"
    )
    assert "no finished task" in str(run)


class Crash(BaseException):
    """The process is killed: nothing is tidied up."""


def crash_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The process ends before the given replacement of a file."""
    count = itertools.count()
    real = os.replace

    def replacing(*args: Any) -> None:
        if next(count) == number:
            raise Crash
        real(*args)

    monkeypatch.setattr(files.os, "replace", replacing)


def play(directory: Path, back_to_task: bool, monkeypatch: pytest.MonkeyPatch, number: int) -> bool:
    """A run that is killed once and continued; False when it was over before that."""
    planned = steps()
    at = 0
    with monkeypatch.context() as patched:
        crash_at(patched, number)
        try:
            run = begin(directory)
            for at, (_, step) in enumerate(planned):  # noqa: B007
                step(run)
            return False
        except Crash:
            pass
    if back_to_task:
        at = next(n for n, (task, _) in enumerate(planned) if task == planned[at][0])
    run = begin(directory)
    for _, step in planned[at:]:
        step(run)
    return True


@pytest.mark.parametrize("back_to_task", [False, True], ids=["same step", "start of the task"])
def test_a_crash_at_any_point(
    back_to_task: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost, and nothing is there twice."""
    run = begin(tmp_path / "whole")
    for _, step in steps():
        step(run)
    whole = contents(tmp_path / "whole")
    assert set(whole) == {"metrics.csv", "tasks.csv", "results.json"}
    for number in itertools.count():
        directory = tmp_path / str(number)
        if not play(directory, back_to_task, monkeypatch, number):
            break
        assert contents(directory) == whole, f"killed before replacement {number}"
    assert number == 14  # trial, results, 6 epochs, 3 files for each of 2 tasks


def test_another_course_after_a_crash(tmp_path: Path) -> None:
    """Epochs that did not come again are gone once the task is finished."""
    run = begin(tmp_path)
    for epoch in range(5):
        run.epoch(task=0, epoch=epoch, loss=1.0)
    again = begin(tmp_path)
    again.epoch(task=0, epoch=2, loss=2.0)
    assert [row["loss"] for row in begin(tmp_path).rows] == [1, 1, 2, 1, 1]  # nothing lost yet
    again.epoch(task=0, phase="prune", round=1, epoch=3, loss=3.0)
    again.after_task(0, evaluation(0.5), capacity(1))
    assert [row["loss"] for row in again.rows] == [1, 1, 2, 3]
    assert [float(row["loss"]) for row in table(tmp_path / "metrics.csv")] == [1, 1, 2, 3]


def test_a_record_goes_forward_only(tmp_path: Path) -> None:
    run = begin(tmp_path)
    for _, step in steps(3):
        step(run)
    run.after_task(2, evaluation(0.5, 0.75, 0.5), capacity(3))  # once more is no harm
    assert run.matrix.rows[-1] == (0.5, 0.75, 0.5)
    before = contents(tmp_path)
    with pytest.raises(InputError, match=r"task 1 is recorded after task 2"):
        run.epoch(task=1, epoch=0)
    with pytest.raises(InputError, match=r"run.rewind\(1\)"):
        run.after_task(1, evaluation(0.5, 0.5), capacity(2))
    assert contents(tmp_path) == before
    run.rewind(1)
    assert run.tasks == Run.resume(tmp_path, draw=False).tasks == (0,)
    assert {row["task"] for row in run.rows} == {0}
    run.epoch(task=1, epoch=0)


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old files are intact, nothing is left behind, and the next call writes everything."""
    run = begin(tmp_path)
    for _, step in steps(1):
        step(run)
    before = contents(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(files.os, call, full)
        with pytest.raises(InputError, match=r"metrics.csv' cannot be written.*No space") as raised:
            run.epoch(task=1, epoch=0, loss=7.0)
        with pytest.raises(InputError, match="cannot be written"):
            run.after_task(1, evaluation(0.5, 0.5), capacity(2))
    assert "intact" in raised.value.remedy
    assert contents(tmp_path) == before
    assert len(Run.resume(tmp_path, draw=False).rows) == 3
    run.epoch(task=1, epoch=1, loss=8.0)
    assert [row["loss"] for row in Run.resume(tmp_path, draw=False).rows][3:] == [7.0, 8.0]


def test_half_written_files_are_not_looked_at(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.epoch(task=0, epoch=0, loss=1.0)
    (tmp_path / ".metrics.csv.tmp").write_bytes(b"task,ph")
    (tmp_path / ".results.json.tmp").write_bytes(b"{")
    assert len(begin(tmp_path).rows) == 1


def test_directories_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(InputError, match="a run cannot be recorded in") as raised:
            Run(tmp_path / place)
        assert "may be written to" in raised.value.remedy
    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fsync", full)
        with pytest.raises(InputError, match="No space left"):
            Run(tmp_path / "full")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "metrics.csv").write_text("mine")
    with pytest.raises(InputError, match=r"has a metrics.csv of something else"):
        Run(tmp_path / "other")
    assert (tmp_path / "other" / "metrics.csv").read_text() == "mine"
    with pytest.raises(InputError, match="there is no run in"):
        Run.resume(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("name", "text", "fact"),
    [
        ("results.json", "{", "results.json' cannot be read"),
        ("results.json", "[]", "is not the record of a run"),
        ("results.json", '{"format": 99}', "has format 99"),
        ("metrics.csv", "task,epoch\n0", "metrics.csv' cannot be read"),
        ("metrics.csv", "task,epoch\n0,x\n", "epoch='x' is not a number"),
        ("metrics.csv", "a,b\n0,1\n", "an epoch is recorded without task"),
        ("metrics.csv", "", "metrics.csv' cannot be read"),
    ],
    ids=range(7),
)
def test_damaged_records(name: str, text: str, fact: str, tmp_path: Path) -> None:
    begin(tmp_path).epoch(task=0, epoch=0)
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=fact):
        Run(tmp_path)
    assert (tmp_path / name).read_text() == text


def test_configurations(tmp_path: Path) -> None:
    @dataclass
    class Settings:
        lr: float
        path: Path
        sizes: tuple[int, ...]

    settings = Settings(0.1, Path("data"), (1, 2))
    Run(tmp_path, config=settings, draw=False)
    assert Run(tmp_path, config=settings, draw=False).config == {
        "lr": 0.1, "path": "data", "sizes": [1, 2],
    }  # fmt: skip
    assert Run(tmp_path, draw=False).config["lr"] == 0.1
    with pytest.raises(InputError, match=r"another configuration: lr was 0.1 and is 0.2"):
        Run(tmp_path, config=replace(settings, lr=0.2))


HOSTILE = [
    "a,b",
    'say "x"',
    "two\nlines",
    "=1+1",
    "'=1+1",
    "@x",
    "-1",
    "\x00\r\t",
    "\ud800",
    "数字😀",
    "<b>",
]


def test_hostile_names(tmp_path: Path) -> None:
    run = begin(tmp_path)
    for n, name in enumerate(HOSTILE):
        run.epoch(task=0, epoch=n, phase=name, loss=float(n))
    run.epoch(task=0, epoch=99, **{"a,\n=b": 1.0})
    again = begin(tmp_path)
    assert again.rows == run.rows
    assert len({row["phase"] for row in run.rows}) == len(HOSTILE) + 1
    for n, name in enumerate(HOSTILE):
        again.epoch(task=0, epoch=n, phase=name, loss=float(n))  # replaces
    assert again.rows == run.rows
    lines = (tmp_path / "metrics.csv").read_text("utf-8").splitlines()
    assert len(lines) == len(HOSTILE) + 2  # one line each
    cells = [cell for line in csv.reader(lines) for cell in line]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@"))]
    hostile = evaluation(0.5)
    for name in HOSTILE:
        named = replace(hostile, tasks=(replace(hostile.tasks[0], name=name),))
        run.after_task(0, named, capacity(1))
        assert Run.resume(tmp_path, draw=False).matrix.names == (name,)
        assert len(table(tmp_path / "tasks.csv")) == 1
        assert len(str(run).splitlines()) == len(str(named).splitlines()) + 3
        assert "<b>" not in named._repr_html_() + run._repr_html_() + run.matrix._repr_html_()


def test_epochs_of_other_kinds(tmp_path: Path) -> None:
    @dataclass
    class Epoch:
        task: int
        number: int
        phase: str
        loss: float | None

    @dataclass
    class History:
        epochs: tuple[Epoch, ...]

    run = begin(tmp_path)
    run.epoch(Epoch(0, 0, "train", 0.5))
    run.epoch({"task": 0, "epoch": 1, "loss": torch.tensor(0.25), "extra": True})
    history = History((Epoch(0, 0, "train", 0.5), Epoch(0, 2, "prune", None)))
    run.after_task(0, evaluation(0.5), capacity(1), history=history, seconds=1.5)
    rows = table(tmp_path / "metrics.csv")
    assert [(row["epoch"], row["phase"], row["loss"], row["extra"]) for row in rows] == [
        ("0", "train", "0.5", ""),
        ("1", "train", "0.25", "1.0"),
        ("2", "prune", "", ""),
    ]
    assert table(tmp_path / "tasks.csv")[0]["seconds"] == "1.5"
    run.after_task(1, evaluation(0.5, 0.5), capacity(2), history=[{"task": 1, "epoch": 0}])
    assert run.rows[-1]["task"] == 1


@pytest.mark.parametrize(
    ("values", "fact"),
    [
        ({"epoch": 0}, "an epoch is recorded without task"),
        ({"task": 0}, "an epoch is recorded without epoch"),
        ({"task": 0, "epoch": 0, "loss": "low"}, "loss='low' is not a number"),
        ({"task": 0, "epoch": 0, "loss": torch.zeros(2)}, "is not a number"),
    ],
    ids=range(4),
)
def test_epochs_that_are_none(values: dict[str, Any], fact: str, tmp_path: Path) -> None:
    run = begin(tmp_path)
    with pytest.raises(InputError, match=fact):
        run.epoch(**values)
    with pytest.raises(InputError, match="the values are a str, which has no names"):
        run.epoch("row")
    with pytest.raises(InputError, match=r"the evaluation has tasks \[0\], and not 1"):
        run.after_task(1, evaluation(0.5), capacity(1))
    assert run.rows == ()


def test_forward_transfer_is_recorded(tmp_path: Path) -> None:
    run = begin(tmp_path)
    for _, step in steps():
        step(run)
    run.alone(0, 0.5)
    assert run.to_dict()["forward_transfer"] is None
    run.alone(1, 0.25)
    run.alone(2, 0.25)  # of a task to come
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["forward_transfer"] == (0 + 0.5) / 2
    assert Run.resume(tmp_path, draw=False).to_dict()["forward_transfer"] == 0.25


def test_bits_that_moved_are_recorded(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.after_task(0, evaluation(0.5), capacity(1))
    run.after_task(1, evaluation(0.5, 0.5, outputs="other"), capacity(2))
    assert run.matrix.backward_transfer() == 0.0  # accuracies do not show it
    assert run.bitwise.ok is False
    assert "MOVED" in str(run.bitwise)
    assert "have moved" in str(run)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["bitwise"]["ok"] is False
    assert [task["same"] for task in results["bitwise"]["tasks"]] == [False, True]
    assert Run.resume(tmp_path, draw=False).bitwise.ok is False


def test_other_questions_cannot_be_compared(tmp_path: Path) -> None:
    run = begin(tmp_path)
    assert run.bitwise.ok is None
    run.after_task(0, evaluation(0.5), capacity(1))
    run.after_task(1, evaluation(0.5, 0.5, inputs="shuffled", outputs="other"), capacity(2))
    assert run.bitwise.ok is None
    assert "do not shuffle" in str(run.bitwise)
    assert "asked other things" in run.bitwise._repr_html_()
    assert Bitwise.of({}).to_dict() == {"ok": None, "tasks": []}


def test_a_real_run(net: Any, tmp_path: Path) -> None:
    with Run(tmp_path, config={"tasks": 2}, draw=False) as run:
        net.finish_task()
        found = evaluate(net, LOADERS)
        run.after_task(1, found, net.capacity())
    assert run.matrix.names == ("task 0", "task 1")
    assert math.isnan(run.matrix.diagonal[0])  # task 0 was not recorded
    assert run.matrix.diagonal[1] == found.accuracy[1]
    groups = json.loads((tmp_path / "results.json").read_text())["tasks"][0]["capacity"]["groups"]
    assert [group["name"] for group in groups] == [g.name for g in net.capacity().groups]


def test_the_training_loop_is_recorded(tmp_path: Path) -> None:
    x, y = torch.randn(16, 4), torch.randint(2, (16,))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    net = autoeidetic.convert(model, x)
    net.prepare_for_task(0)
    run, other = begin(tmp_path / "one by one"), begin(tmp_path / "at the end")
    settings = {"max_epochs": 2, "step": 0.5, "recovery_epochs": 1, "progress": False}
    history = net.train_task([(x, y)], on_epoch=run.epoch, **settings)
    net.finish_task()
    other.after_task(0, evaluate(net, [[(x, y)]]), net.capacity(), history=history)
    assert run.rows == other.rows
    assert len(run.rows) == len(history.epochs) >= 3
    assert run.rows[0]["phase"] == "train"
    assert run.rows[0]["lr"] == 0.001


# -- TensorBoard ----------------------------------------------------------------------------------


class Writer:
    made: list[Writer] = []

    def __init__(self, directory: str, purge_step: int | None = None) -> None:
        self.purge_step, self.scalars, self.closed = purge_step, [], False
        Writer.made.append(self)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.append((tag, value, step))

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    Writer.made = []
    yield
    Writer.made = []


def test_events(board: None, tmp_path: Path) -> None:
    with begin(tmp_path) as run:
        for _, step in steps(1):
            step(run)
        run.epoch(task=1, epoch=0, loss=NAN, lr=0.5)
    (writer,) = Writer.made
    assert ("epoch/loss", 0.25, 1) in writer.scalars
    assert ("accuracy/task 0", 0.5, 0) in writer.scalars
    assert ("capacity/free", 0.75, 0) in writer.scalars
    assert ("epoch/lr", 0.5, 3) in writer.scalars
    assert all(value == value for _, value, _ in writer.scalars)
    assert writer.closed
    begin(tmp_path).epoch(task=1, epoch=0, lr=0.5)
    assert Writer.made[-1].purge_step == 3
    Run(tmp_path, tensorboard=False, draw=False).epoch(task=1, epoch=1)
    assert len(Writer.made) == 2


def test_events_can_be_read_by_tensorboard(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with begin(tmp_path) as run:
        for _, step in steps(1):
            step(run)
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("accuracy/task 0")] == [0.5]
    assert 0.25 in [event.value for event in events.Scalars("epoch/loss")]


def test_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with begin(tmp_path) as run:
        for _, step in steps(1):
            step(run)
    assert not (tmp_path / "tensorboard").exists()
