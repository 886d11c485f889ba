"""``net.extract``: whatever users do, programs are the network, which stays as it is."""

from __future__ import annotations

import copy
import random
import re
import sys
import threading
from pathlib import Path
from typing import Any

import lives
import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

import autoeidetic
from autoeidetic import EideticNet
from autoeidetic.errors import (
    ExtractionError,
    TaskError,
)
from autoeidetic.extract import compare
from autoeidetic.extract.program import Program
from extract.networks import (
    CLASSES,
    WRITING,
    Casting,
    Heads,
    Looking,
    Masked,
    Mixed,
    Noisy,
    ParameterHead,
    Segmentation,
    Streams,
    Tied,
    Writing,
    body,
    called,
    convolutional,
    disturb,
    far,
    grown,
    image,
)
from extract.untouched import untouched

#: What is rounding in each type.
CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}


@pytest.fixture(scope="module")
def made() -> EideticNet:
    torch.manual_seed(0)
    return grown(convolutional(), image(), names=["pets", "cars", None])


@pytest.fixture
def net(made: EideticNet) -> EideticNet:
    return copy.deepcopy(made)


def agrees(net: EideticNet, program: nn.Module, inputs: Any, tasks: Any) -> bool:
    """Does a program answer as the network does?"""
    mode = net.training
    net.eval()
    if isinstance(tasks, int):
        expected = called(net, inputs, task=tasks)
    else:
        expected = [called(net, inputs, task=each) for each in tasks]
    net.train(mode)
    kind = next(net.parameters()).dtype
    return far(expected, called(program, inputs)) < CLOSE[kind]


def extracted(net: EideticNet, tasks: Any) -> Program:
    with untouched(net):
        return net.extract(tasks)


# -- what is asked for ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "numbers", "names"),
    [
        (1, 1, ["cars"]),
        ("cars", 1, ["cars"]),
        (torch.tensor(2), 2, ["task 2"]),
        (["cars", 0], [1, 0], ["cars", "pets"]),
        ((2,), [2], ["task 2"]),
        ([0, 0], [0, 0], ["pets", "pets"]),
        ("all", [0, 1, 2], ["pets", "cars", "task 2"]),
    ],
)
def test_tasks(net: EideticNet, asked: Any, numbers: Any, names: list[str]) -> None:
    program = extracted(net, asked)
    assert agrees(net, program, image(5), numbers)
    assert list(program.report.tasks) == names
    assert "input: dimension 0" in program.report.dynamic
    assert program.report.difference < 1e-9
    assert program.report.parameters_after < program.report.parameters_before


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (7, "task 7 does not exist"),
        (-1, "task -1 does not exist"),
        (True, "task True does not exist"),
        (1.0, "task 1.0 does not exist"),
        (None, "task None does not exist"),
        ("dogs", "task 'dogs' does not exist"),
        (["all"], "task 'all' does not exist"),
        ([[0]], r"task \[0\] does not exist"),
        ([], "the list of tasks is empty"),
    ],
)
def test_no_such_task(net: EideticNet, asked: Any, text: str) -> None:
    with untouched(net), pytest.raises(TaskError, match=text) as caught:
        net.extract(asked)
    assert caught.value.remedy


def test_names(net: EideticNet) -> None:
    net.prepare_for_task(3, num_classes=2, name="pets")
    net.finish_task()
    net.prepare_for_task(4, num_classes=2, name="all", on_full="reuse")
    net.finish_task()
    net.eval()
    with pytest.raises(TaskError, match="several tasks are called 'pets'"):
        net.extract("pets")
    # a task that is called so comes before the word
    assert agrees(net, extracted(net, "all"), image(3), 4)


def test_unfinished_tasks(net: EideticNet) -> None:
    bare = autoeidetic.convert(convolutional(), image())
    for asked, text in (("all", "no task is finished"), (0, "task 0 does not exist")):
        with pytest.raises(TaskError, match=text):
            bare.extract(asked)
    net.prepare_for_task(3, num_classes=2)
    for asked in (3, [0, 3]):
        with untouched(net), pytest.raises(TaskError, match="still open"):
            net.extract(asked)
    assert len(extracted(net, "all")(image(3))) == 3


def test_refused_models(net: EideticNet) -> None:
    looking = grown(Looking(), torch.randn(2, 6))
    with untouched(looking), pytest.raises(ExtractionError, match="looks at data"):
        looking.extract(0)
    noisy = grown(Noisy(), torch.randn(2, 6), rehearse=False)
    with untouched(noisy), pytest.raises(ExtractionError, match="random numbers in eval mode"):
        noisy.extract(0)
    layers = grown(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.ones(2, 4))
    with pytest.raises(ExtractionError, match="meta device"):
        layers.to("meta").extract(0)
    for transform in (torch.func.vmap, torch.func.grad):
        with pytest.raises(ExtractionError, match=r"inside of a torch\.func transform"):
            transform(lambda x: net.extract(0)(x[None]).sum())(image())


def test_a_wrong_program_is_refused(net: EideticNet, monkeypatch: pytest.MonkeyPatch) -> None:
    from autoeidetic.extract.rules import channelwise

    write = channelwise.BatchNorm.write

    def wrong(self: Any, node: Any, kept: Any, out: Any) -> Any:
        narrow = write(self, node, kept, out)
        narrow.node.args = (*narrow.node.args[:-2], 0.5, narrow.node.args[-1])  # epsilon
        return narrow

    monkeypatch.setattr(channelwise.BatchNorm, "write", wrong)
    with untouched(net), pytest.raises(ExtractionError, match="differs from the network") as caught:
        net.extract(0)
    assert "batch_norm" in str(caught.value)


def test_differences() -> None:
    one, nan = torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")])
    assert compare.difference(one, one + 0.5) == 0.25
    assert compare.difference([one, nan], [one, nan]) == 0
    for found in (nan, one * float("inf"), one[:1], None, torch.tensor([1, 2])):
        assert compare.difference([one, one], [one, found]) > 0.1, found
    assert compare.difference(nan, one) == float("inf")
    assert compare.difference(one.int(), one.int() + 1) == float("inf")
    assert compare.difference(one * 1j, one * 1j + 1) == 0.5
    assert compare.difference([one, 3], [one, 4]) == float("inf")


# -- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", ["features", "words"])
def test_several_outputs(structure: str) -> None:
    net = grown(Heads(structure), image(), [None, 2, {"first": 2, "second": 4}])
    for task in range(3):
        assert agrees(net, extracted(net, task), image(5), task)
    assert agrees(net, extracted(net, "all"), image(5), range(3))


def test_an_output_that_is_a_size() -> None:
    net = grown(Heads("rows"), image(), [3, 2])
    program = extracted(net, 1)
    assert program(image(2))[1] == 2
    assert "x: dimension 0" not in program.report.dynamic
    assert any(text.startswith("x: dimension 0") for text in program.report.fixed)


@pytest.mark.parametrize(
    ("model", "inputs", "other"),
    [
        (Segmentation, image(2, 8), torch.randn(5, 3, 12, 10)),
        (ParameterHead, image(), image(5)),
        (body, image(), image(5)),  # without an output layer
        (Streams, (torch.ones(2, 4), torch.ones(2, 6)), (torch.ones(5, 4), torch.ones(5, 6))),
        (Tied, torch.randn(2, 6), torch.randn(5, 6)),
        (Mixed, image(), image(5)),
        (Casting, torch.randn(2, 6), torch.randn(5, 6)),
    ],
)
def test_models(model: Any, inputs: Any, other: Any) -> None:
    net = grown(model(), inputs)
    for tasks in (1, [2, 0]):
        assert agrees(net, extracted(net, tasks), other, tasks)


def test_keyword_inputs() -> None:
    def inputs(batch: int) -> dict[str, Any]:
        extra = (torch.randn(batch, 8), torch.randn(batch, 8))
        left, right = torch.randn(batch, 4), torch.randn(batch, 6)
        return {"right": right, "left": left, "scale": 3.0, "extra": extra}

    net = grown(Streams(), inputs(2))
    program, other = extracted(net, 1), inputs(5)
    first, second = other["extra"]
    found = program(left=other["left"], right=other["right"], extra_0=first, extra_1=second)
    assert far(called(net, other, task=1), found) < 1e-5


@pytest.mark.parametrize("how", WRITING)
def test_writes_through_views(how: str) -> None:
    net = grown(Writing(how), torch.randn(2, 3, 6, 6), [3, 2])
    program = extracted(net, [0, 1])
    assert "autoeidetic" not in program.code
    assert "x: dimension 0" in program.report.dynamic
    assert agrees(net, program, torch.randn(5, 3, 6, 6), [0, 1])


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", ["fill", "add", "where"])
def test_lowest_numbers_of_a_type(how: str, kind: torch.dtype) -> None:
    """Extraction works in double precision, whose lowest number other types do not have."""
    ids, mask = torch.randint(0, 11, (3, 4)), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0] * 4])
    net = grown(Masked(how), (ids, mask), [3, 2]).to(kind)
    assert agrees(net, extracted(net, 1), (ids.flip(1), mask), 1)


def test_kept_heads_and_replaced_tasks() -> None:
    net = grown(convolutional(), image(), [None, 2], keep_head=True)
    net.prepare_for_task(2, revisit=1)
    disturb(net)
    net.finish_task()
    old = called(net.eval(), image(5), task=1)
    net.replace_task(1, by=2)
    x = image(5)
    for tasks in (0, 1, [1, 0, 2]):
        assert agrees(net, extracted(net, tasks), x, tasks)
    assert far(called(net, x, task=2), called(net.extract(1), x)) < 1e-5
    assert far(old, called(net.extract(1), x)) > 1e-2


def test_a_task_that_keeps_everything_and_one_that_keeps_nothing() -> None:
    net = autoeidetic.convert(lives.randomise(convolutional()), image())
    for task, fraction in enumerate((1.0, 0.0)):
        net.prepare_for_task(task, num_classes=2)
        disturb(net)
        net.prune(fraction)
        net.finish_task()
    net.eval()
    programs = [extracted(net, task) for task in (0, 1)]
    for task, program in enumerate(programs):
        assert agrees(net, program, image(3), task)
    before, after = (each.report.parameters_after for each in programs)
    assert before < 0.1 * after


# -- surroundings ---------------------------------------------------------------------------------


def test_in_the_middle_of_training(net: EideticNet) -> None:
    x = image(5)
    bits = [called(net, x, task=task) for task in range(3)]
    net.prepare_for_task(3, num_classes=2)
    net.backbone[0].register_forward_hook(lambda *_: None)  # type: ignore[index]
    net.train()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        net(image(4)).square().mean().backward()
        optimizer.step()
    assert agrees(net, extracted(net, 1), x, 1)
    assert net.training
    before = lives.state(net)
    optimizer.step()
    assert lives.changed(net, before)  # training goes on
    net.eval()
    assert all(torch.equal(called(net, x, task=task), bits[task]) for task in range(3))
    assert net.verify(x).ok


def test_next_to_a_task_that_diverged(net: EideticNet) -> None:
    x = image(5)
    expected = [called(net, x, task=task) for task in (0, 1)]
    net.prepare_for_task(3, num_classes=2)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(float("nan"))
    net.pins.impose()
    assert net.diverged()
    assert far(expected, called(extracted(net, [0, 1]), x)) < 1e-5


@pytest.mark.parametrize("kind", ["half", "bfloat16", "double"])
def test_types(net: EideticNet, kind: str) -> None:
    getattr(net, kind)()
    own = next(net.parameters()).dtype
    program = extracted(net, 1)
    types = {value.dtype for value in program.state_dict().values()}
    assert types <= {own, torch.int64}  # indices
    assert agrees(net, program, image(5).to(own), 1)


@pytest.mark.parametrize("model", [convolutional, Mixed])
def test_modes_of_torch(model: Any) -> None:
    net = grown(model(), image(), [3, 2])
    modes = [torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)]
    for mode in modes:
        with mode:
            program = extracted(net, 1)
        assert agrees(net, program, image(5), 1)
        program(image(3)).sum().backward()
        assert all(parameter.grad is not None for parameter in program.parameters())


def test_memory_formats(net: EideticNet) -> None:
    net.to(memory_format=torch.channels_last)
    last = image(5).to(memory_format=torch.channels_last)
    for x in (last, image(5)):
        assert agrees(net, extracted(net, 1), x, 1)
    other = grown(convolutional(), last, [3])
    assert agrees(other, extracted(other, 0), image(4), 0)


def test_copies_and_files(net: EideticNet, tmp_path: Path) -> None:
    net.save(tmp_path / "net")
    for other in (copy.deepcopy(net), autoeidetic.load(tmp_path / "net", model=convolutional())):
        other.eval()
        assert agrees(net, extracted(other, 1), image(5), 1)


@pytest.mark.parametrize("by", ["learned", "mahalanobis", "entropy", "energy"])
def test_routers(net: EideticNet, by: str, tmp_path: Path) -> None:
    means = torch.randn(3, 1, 3, 9, 9)
    data = [
        [(means[task] + image(16), torch.randint(0, count, (16,))) for _ in range(2)]
        for task, count in enumerate(CLASSES)
    ]
    net.train_router(data, by=by)
    program = extracted(net, "all")
    x = torch.cat([batches[0][0] for batches in data])
    expected, found = net.predict(x), program(x)
    assert list(found) == ["task", "label", "scores"]
    assert torch.equal(found["task"], expected.task)
    assert torch.equal(found["label"], expected.label)
    assert far(expected.scores, found["scores"]) < 1e-4
    program.save(tmp_path / "program.safetensors")
    again = autoeidetic.load(tmp_path / "program.safetensors")
    assert far(found, again(x)) == 0
    if by in ("learned", "mahalanobis"):
        assert len(found["task"].unique()) > 1
    # one task, or a list, is what it is without a router
    assert agrees(net, extracted(net, [0, 1]), x, [0, 1])
    net.prepare_for_task(3, num_classes=2)
    net.finish_task()
    with pytest.raises(TaskError, match="the router knows 3 tasks"):
        net.extract("all")


def test_threads(net: EideticNet) -> None:
    x, programs, errors = image(5), {}, []
    expected = [called(net, x, task=task) for task in range(3)]

    def extract(task: int) -> None:
        try:
            programs[task] = net.extract(task)
        except Exception as error:
            errors.append(error)

    def ask() -> None:
        for _ in range(10):
            if not torch.equal(called(net, x, task=0), expected[0]):
                errors.append(AssertionError("an answer has changed"))

    threads = [threading.Thread(target=extract, args=(task,)) for task in range(3)]
    threads.append(threading.Thread(target=ask))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for task in range(3):
        assert far(expected[task], called(programs[task], x)) < 1e-5


def test_interruptions(net: EideticNet) -> None:
    x = image(5)
    expected = called(net, x, task=1)
    _calls(net, None)  # the first time it fills caches
    total = _calls(net, None)
    for moment in random.Random(0).sample(range(total), 5):
        with untouched(net), pytest.raises(KeyboardInterrupt):
            _calls(net, moment)
        assert torch.equal(called(net, x, task=1), expected)
    assert agrees(net, extracted(net, 1), x, 1)


def _calls(net: EideticNet, last: int | None) -> int:
    """Extract; interrupt it when so many functions of the package were called."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        if re.search(r"autoeidetic/(extract|capture|tasks)/", frame.f_code.co_filename):
            if count == last:
                sys.settrace(None)
                raise KeyboardInterrupt
            count += 1

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        net.extract(1)
    finally:
        sys.settrace(before)
    return count


# -- programs -------------------------------------------------------------------------------------


def test_a_program_is_trained_further(net: EideticNet) -> None:
    x, targets = image(32), torch.randint(0, 2, (32,))
    program, losses = extracted(net, 1), []
    optimizer = torch.optim.Adam(program.parameters(), 0.01)
    with untouched(net):
        for _ in range(20):
            optimizer.zero_grad()
            loss = F.cross_entropy(program(x), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert net.verify(x).ok


def test_a_program_shares_no_memory(net: EideticNet) -> None:
    program = extracted(net, "all")
    memory = {tensor.untyped_storage().data_ptr() for tensor in (*net.parameters(), *net.buffers())}
    tensors = [*program.parameters(), *program.buffers()]
    assert memory.isdisjoint(tensor.untyped_storage().data_ptr() for tensor in tensors)
    with untouched(net), torch.no_grad():
        for tensor in tensors:
            tensor.zero_()


def test_compiled_and_exported(net: EideticNet) -> None:
    program = extracted(net, [0, 2])
    compiled: Any = torch.compile(program, backend="eager", fullgraph=True, dynamic=True)
    sizes = {0: torch.export.Dim.DYNAMIC}
    exported = torch.export.export(program, (image(),), dynamic_shapes=(sizes,)).module()
    for batch in (2, 5, 1):
        x = image(batch)
        assert agrees(net, compiled, x, [0, 2])
        # which returns a list of its own kind
        assert far(called(program, x), list(called(exported, x))) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
@pytest.mark.parametrize("tasks", [1, [0, 1, 2]])
def test_onnx(name: str, tasks: Any, tmp_path: Path) -> None:
    import onnxruntime

    model = timm.create_model(name, num_classes=5)
    size = model.default_cfg["input_size"]
    net = grown(model, torch.randn(2, *size))
    program = extracted(net, tasks)
    assert program.report.parameters_after < 0.9 * program.report.parameters_before
    x = torch.randn(3, *size)
    assert agrees(net, program, x, tasks)
    program.save(tmp_path / "program.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "program.onnx")
    (given,) = session.get_inputs()
    found = [torch.from_numpy(each) for each in session.run(None, {given.name: x.numpy()})]
    numbers = [tasks] if isinstance(tasks, int) else tasks
    assert far([called(net, x, task=task) for task in numbers], found) < 1e-4


def test_a_program_needs_no_package(net: EideticNet, tmp_path: Path) -> None:
    import subprocess

    program, x = extracted(net, 1), image(5)
    torch.save({"program": program, "x": x, "y": called(net, x, task=1)}, tmp_path / "file")
    code = (
        "import sys; sys.modules['autoeidetic'] = None\n"
        "import torch\n"
        f"found = torch.load({str(tmp_path / 'file')!r}, weights_only=False)\n"
        "assert torch.allclose(found['program'](found['x']), found['y'], atol=1e-5)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- smallness ------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Four heads of four channels, on a stream of sixteen."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(5, 16), nn.Linear(16, 3)
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.head(x.mean(1))


def test_scattered_channels_of_heads_are_cut_exactly() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 5)
    net = autoeidetic.convert(lives.randomise(Attention()), x)
    net.prepare_for_task(0, num_classes=3)
    plan = net.call_plan.plan
    values = plan.parameters["qkv.bias"].units.numpy()[32:].reshape(4, 4)
    pruned = np.zeros_like(net.owners.pruned)
    pruned[values[[0, 0, 1, 2, 2, 2], [1, 2, 3, 0, 1, 2]]] = True  # other channels of each head
    pruned[plan.parameters["embed.bias"].units.numpy()[:10]] = True
    net.give_up(pruned)
    net.finish_task()
    program = extracted(net.eval(), 0)
    assert agrees(net, program, torch.randn(3, 9, 5), 0)
    # the other values of a head are not computed: they would read the whole stream
    assert program.get_parameter("qkv.weight").shape == (32 + 10, 6)
    assert program.get_parameter("embed.weight").shape == (6, 5)
