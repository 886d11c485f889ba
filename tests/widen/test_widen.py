"""Columns beside a network: finished tasks keep their bits, and new ones live beside them."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lives
import pytest
import timm
import torch
import zoo
from torch import Tensor, nn
from torch.nn import functional as F

import autoeidetic
from autoeidetic.errors import (
    AutoeideticError,
    CapacityError,
    CheckpointError,
    DivergenceWarning,
    InputError,
    TaskError,
)
from autoeidetic.net import EideticNet
from autoeidetic.proof.verify import scramble
from autoeidetic.widen.laterals import finished, laterals
from autoeidetic.widen.wide import Wide

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(5, 16),
        nn.ReLU(),
        nn.Linear(16, 16),
        nn.LayerNorm(16),
        nn.GELU(),
        nn.Linear(16, 4),
    )


class Conv(nn.Module):
    """Batch norm, dropout, a residual that is changed in place, a depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.point, self.drop = nn.Conv2d(8, 8, 1), nn.Dropout(0.5)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        y = self.point(x) + self.deep(x)
        # in eval mode the input of `point` is gone after this
        x = 0.5 * x + y if self.training else x.mul_(0.5).add_(y)
        return self.head(self.drop(x).mean((2, 3)))


IMAGES = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def trained(net: EideticNet, x: Any, classes: int = 3, fraction: float = 0.5) -> Tensor:
    """One more task, trained with hostile optimizers; its answer when it is finished."""
    task = len(net.tasks)
    net.prepare_for_task(task, num_classes=classes, on_full="reuse")
    net.train()
    # finished columns as well, which `net.parameters()` leaves out
    everything = [p for column in net.networks for p in column.parameters()]
    for optimizer in (
        torch.optim.AdamW(everything, lr=0.01, weight_decay=0.5),
        torch.optim.SGD(everything, lr=0.01, momentum=0.9, weight_decay=0.1),
    ):
        for _ in range(2):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            nn.utils.clip_grad_norm_(everything, 5.0)
            optimizer.step()
    net.prune(fraction)
    net.finish_task()
    net.eval()
    return net(x, task=task).detach().clone()


class Life:
    """A network whose finished tasks are asked again and again."""

    def __init__(self, model: nn.Module, x: Any, **options: Any) -> None:
        torch.manual_seed(0)
        self.x = x
        self.net: Any = autoeidetic.convert(lives.randomise(model), x, **options)
        self.said: list[Tensor] = []

    def learn(self, tasks: int = 1, **options: Any) -> Life:
        for _ in range(tasks):
            said = trained(self.net, self.x, **options)
            self.check()
            self.said.append(said)
        return self

    def widen(self, width: float = 0.5) -> Life:
        self.net.widen(width)
        self.check()
        return self

    def check(self, net: Any = None) -> None:
        net = (net or self.net).eval()
        for task, said in enumerate(self.said):
            assert lives.same([net(self.x, task=task)], [said]), f"task {task} moved"

    @property
    def whole(self) -> Life:
        """Two columns with two tasks each."""
        return self.learn(2, fraction=0.3).widen().learn(2, fraction=0.3)


@pytest.fixture(scope="module")
def grown() -> Life:
    return Life(mlp(), X).whole


@pytest.fixture
def life(grown: Life) -> Life:
    return copy.deepcopy(grown)


# -- bits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "x"), [(mlp, X), (Conv, IMAGES)], ids=["mlp", "conv"])
@pytest.mark.parametrize("transfer", [True, False])
def test_no_bit_moves(model: Callable[[], nn.Module], x: Tensor, transfer: bool) -> None:
    life = Life(model(), x, forward_transfer=transfer)
    life.learn(2, fraction=0.3).widen().learn(2).widen(0.25).learn()
    assert isinstance(life.net, Wide)
    assert [len(column.tasks) for column in life.net.columns] == [2, 2, 1]
    assert all(torch.equal(a, b) for a, b in zip(life.net(x, task="all"), life.said, strict=True))
    assert life.net.verify(x).ok


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext"])
def test_timm(name: str) -> None:
    life = Life(timm.create_model(name), torch.randn(2, 3, 96, 96) if "vit" not in name else None)
    life.x = torch.randn(2, *life.net.example.args[0].shape[1:])
    life.learn(fraction=0.3).widen(0.25).learn(2).widen(0.25).learn()
    assert life.net.verify(life.x).ok


#: One hazard each: what a column might lose.
HAZARDS = """\
conv_bn_relu group_norm mixer_block multihead_self transformer_encoder eca lstm called_twice
weight_norm_by_level std_conv two_heads grouped_conv dict_input same_conv
embedding tied_linear swin_block conv1d transposed_conv squeeze_excite in_place_activation
"""


@pytest.mark.parametrize("name", HAZARDS.split())
def test_hazards(name: str) -> None:
    model, x = zoo.ZOO[name]()
    life = Life(model, x)
    net = life.net
    said: list[list[Tensor]] = []
    for width in (None, 0.5, 0.5):
        if width is not None:
            net.widen(width)
        net.prepare_for_task(len(net.tasks), num_classes=3, on_full="reuse")
        with torch.no_grad():
            for parameter in net.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        net.prune(0.3)
        net.finish_task()
        net.eval()
        for task, answer in enumerate(said):
            assert lives.same(lives.tensors(lives.call(net, x, task=task)), answer)
        said.append(lives.tensors(lives.call(net, x, task=len(said))))


def test_a_pretrained_model_keeps_every_unit() -> None:
    model = mlp().eval()
    expected = model(X)
    net: Any = autoeidetic.convert(model, X, keep_head=True)
    net.prepare_for_task(0)
    net.finish_task()
    assert torch.equal(net.eval()(X, task=0), expected)
    net.widen(0.25)
    trained(net, X)
    assert torch.equal(net(X, task=0), expected)


def test_free_values_of_a_finished_column_reach_nobody(life: Life) -> None:
    with torch.no_grad():
        scramble(life.net.columns[0], torch.Generator().manual_seed(1))
    life.check()


def test_without_the_masks_they_would(life: Life) -> None:
    """The test above can fail."""
    net = life.net
    (column,) = net.newest.earlier
    source = next(s for s in column.sources.values() if s.index is not None)
    scrambled = copy.deepcopy(net)
    with torch.no_grad():
        scramble(scrambled.columns[0], torch.Generator().manual_seed(1))
    seen: list[Tensor] = []
    for each in (net, scrambled):
        (own,) = each.newest.earlier
        layer = own.network.backbone.get_submodule(source.path)
        layer.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
        each(X, task=3)
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(
        *(each.index_select(source.dim, source.index) for each in seen)  # type: ignore[arg-type]
    )


def test_other_shapes_and_modes(life: Life) -> None:
    net, more = life.net.eval(), torch.randn(9, 5)
    before = [net(more, task=task).clone() for task in range(4)]
    with torch.inference_mode():
        assert all(
            torch.allclose(net(more, task=t), said, atol=1e-6) for t, said in enumerate(before)
        )
    life.learn()
    for task, said in enumerate(before):
        assert torch.equal(net(more, task=task), said)


def test_gradients_of_inputs_flow_through_all_columns() -> None:
    life = Life(mlp().double(), X.double())
    life.learn(fraction=0.3).widen().learn()
    net = life.net.eval()
    x = X[:2].double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: net(x, task=1), x)


def test_an_optimizer_from_before_the_widening() -> None:
    """It holds every parameter of what is the first column now, with momentum."""
    life = Life(mlp(), X).learn()
    optimizer = torch.optim.SGD(life.net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)
    for parameter in life.net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    life.check()
    life.widen()
    optimizer.step()
    life.check()
    life.learn()
    optimizer.step()
    life.check()


def test_training_touches_the_newest_column_only(life: Life) -> None:
    net = life.net
    assert {name.split(".")[1] for name, _ in net.named_parameters()} == {"1"}
    assert {name.split(".")[1] for name in net.state_dict()} == {"0", "1"}
    net.prepare_for_task(4, num_classes=2, on_full="reuse")
    net.train()
    assert not net.columns[0].training
    assert net.newest.training
    net(X).sum().backward()
    assert all(p.grad is None for p in net.columns[0].parameters())
    assert any(p.grad is not None for p in net.newest.parameters())


def test_hand_edits_of_a_finished_column_are_undone(life: Life) -> None:
    with torch.no_grad():
        for parameter in life.net.columns[0].parameters():
            parameter.add_(1.0)
    life.check()


def test_divergence_in_a_new_column(life: Life) -> None:
    net = life.net
    net.prepare_for_task(4, num_classes=2, on_full="reuse")
    with torch.no_grad():
        for name, tensor in net.newest.free.tensors().items():
            net.newest.free.write(name, torch.full_like(tensor, float("inf")))
    net.eval()
    for task in (0, 1):
        assert torch.equal(net(X, task=task), life.said[task])
    for task in (2, 3):
        with pytest.warns(DivergenceWarning):
            assert torch.equal(net(X, task=task), life.said[task])


def test_not_finite_in_a_finished_column(life: Life) -> None:
    first = life.net.columns[0]
    with torch.no_grad():
        for name, tensor in first.free.tensors().items():
            if tensor.is_floating_point():
                first.free.write(name, torch.full_like(tensor, float("nan")))
    for task in (2, 3):
        assert torch.equal(life.net.eval()(X, task=task), life.said[task])


# -- copies, files, moves -------------------------------------------------------------------------


def test_copies(life: Life) -> None:
    other = copy.deepcopy(life)
    other.learn()
    assert len(life.net.tasks) == 4
    life.check()
    life.check(other.net)


def test_pickle(life: Life) -> None:
    file = io.BytesIO()
    torch.save(life.net, file)
    file.seek(0)
    life.check(torch.load(file, weights_only=False))


def test_moves_between_types(life: Life) -> None:
    life.net.bfloat16().float()
    life.check()
    assert life.net.double()(X.double(), task=3).dtype == torch.float64


def test_state_dict(life: Life) -> None:
    state = {name: value.clone() for name, value in life.net.state_dict().items()}
    other = copy.deepcopy(life.net)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    other.load_state_dict(state)
    life.check(other)


def test_files(life: Life, tmp_path: Path) -> None:
    path = tmp_path / "wide.safetensors"
    data = [[(torch.randn(16, 5) + task, torch.zeros(16).long())] for task in range(4)]
    life.net.train_router(data, epochs=3, progress=False)
    life.net.save(path)
    again = autoeidetic.load(path, mlp())
    life.check(again)
    assert torch.equal(again.predict(X).scores, life.net.predict(X).scores)
    assert [task.name for task in again.tasks] == [task.name for task in life.net.tasks]
    report = autoeidetic.audit(path, mlp())
    assert report.ok
    assert [task.task for task in report.tasks] == [0, 1, 2, 3]
    assert autoeidetic.audit(path, mlp(), digest=report.digest).ok
    life.net, before = again, life.net
    life.learn()
    assert len(before.tasks) == 4


def test_a_file_saved_in_the_middle_of_a_task(life: Life, tmp_path: Path) -> None:
    net = life.net
    net.prepare_for_task(4, num_classes=2, on_full="reuse")
    net.prune(0.3)
    net.save(tmp_path / "net.safetensors")
    again = autoeidetic.load(tmp_path / "net.safetensors", mlp())
    assert again.open_task == 4
    assert torch.equal(again.eval()(X), net.eval()(X))
    again.finish_task()
    life.check(again)


def test_an_edited_file_is_noticed(life: Life, tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = tmp_path / "net.safetensors"
    life.net.save(path)
    noted = autoeidetic.audit(path, mlp()).digest
    with safe_open(path, framework="pt") as file:
        about = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors["columns.1.backbone.model.2.lateral.weight"] += 1
    save_file(tensors, path, about)
    report = autoeidetic.audit(path, mlp(), digest=noted)
    assert not report.ok
    assert {task.task for task in report.tampered} & {2, 3}
    with pytest.raises(CheckpointError):
        autoeidetic.load(path, mlp())


def test_a_digest_from_before_the_widening(tmp_path: Path) -> None:
    life = Life(mlp(), X).learn()
    life.net.save(tmp_path / "before.safetensors")
    digest = autoeidetic.audit(tmp_path / "before.safetensors", mlp()).digest
    life.widen().learn().net.save(tmp_path / "after.safetensors")
    assert autoeidetic.audit(tmp_path / "after.safetensors", mlp(), digest=digest).ok
    with pytest.raises(InputError, match="not a digest"):
        autoeidetic.audit(tmp_path / "after.safetensors", mlp(), digest="abc")


def test_like(tmp_path: Path) -> None:
    def narrow() -> nn.Module:
        return nn.Sequential(
            nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 4)
        )

    life = Life(mlp(), X).learn()
    life.net.widen(like=narrow())
    life.learn()
    life.net.save(tmp_path / "net.safetensors")
    with pytest.raises(CheckpointError, match="like="):
        autoeidetic.load(tmp_path / "net.safetensors", mlp())
    life.check(autoeidetic.load(tmp_path / "net.safetensors", [mlp(), narrow()]))
    with pytest.raises(InputError, match="has no layer"):
        Life(mlp(), X).learn().net.widen(like=nn.Sequential(nn.Linear(5, 4)))
    with pytest.raises(InputError, match="like is a int"):
        Life(mlp(), X).learn().net.widen(like=3)


# -- the life of tasks ----------------------------------------------------------------------------


def test_on_full() -> None:
    net: Any = autoeidetic.convert(mlp(), X, keep_head=True)
    net.prepare_for_task(0)
    net.finish_task()
    with pytest.raises(CapacityError, match='on_full="widen"'):
        net.prepare_for_task(1, num_classes=2)
    for task in range(1, 5):  # a column has four units of each kind, and two must be free
        net.prepare_for_task(task, num_classes=2, on_full="widen")
        net.prune(0.5 if task < 4 else 0)
    net.prepare_for_task(5, num_classes=2, on_full="widen")
    net.finish_task()
    assert [len(column.tasks) for column in net.columns] == [1, 2, 2, 1]
    assert [task.name for task in net.tasks] == [f"task {n}" for n in range(6)]


def test_wrong_classes_do_not_widen() -> None:
    net: Any = autoeidetic.convert(mlp(), X, keep_head=True)
    net.prepare_for_task(0)
    net.finish_task()
    with pytest.raises(AutoeideticError, match="num_classes"):
        net.prepare_for_task(1, num_classes=-2, on_full="widen")
    assert not isinstance(net, Wide)


def test_mistakes() -> None:
    net: Any = autoeidetic.convert(mlp(), X)
    with pytest.raises(TaskError, match="no task yet"):
        net.widen()
    net.prepare_for_task(0, num_classes=2)
    with pytest.raises(TaskError, match="a task is open"):
        net.widen()
    net.finish_task()
    for width in (0, -1, 1.5, True, "half"):
        with pytest.raises(InputError, match="width="):
            net.widen(width)
    net.widen()
    with pytest.raises(TaskError, match="no task yet"):
        net.widen()
    with pytest.raises(TaskError, match="next task is 1"):
        net.prepare_for_task(0, num_classes=2)
    with pytest.raises(TaskError, match="tasks 0 to 0"):
        net(X, task=1)
    with pytest.raises(TaskError, match=r"call prepare_for_task\(1\) first"):
        net.finish_task()


def test_rollback_revisit_and_replace(life: Life) -> None:
    net = life.net
    net.prepare_for_task(4, revisit=3, on_full="reuse")
    net.rollback()
    net.finish_task()
    net.replace_task(3, by=4)
    assert net.tasks[3].answered_by == 4
    net.replace_task(3, by=None)
    life.check()
    with pytest.raises(InputError, match="earlier column"):
        net.prepare_for_task(5, revisit=0)
    with pytest.raises(TaskError):
        net.replace_task(0, by=4)


def test_the_object_stays_the_same() -> None:
    life = Life(mlp(), X).learn()
    net = life.net
    net.note = "mine"
    calls: list[int] = []
    net.register_forward_hook(lambda *_: calls.append(1))
    backbone = net.backbone
    life.widen()
    assert isinstance(net, EideticNet)
    assert net.backbone is backbone
    assert net.note == "mine"
    calls.clear()
    net(X, task=0)
    assert calls == [1]


def test_a_router_goes_on_after_widening() -> None:
    life = Life(mlp(), X).learn(2)
    data = [[(torch.randn(16, 5) + task, torch.zeros(16).long())] for task in range(2)]
    life.net.train_router(data, epochs=3, progress=False)
    before = life.net.predict(X)
    life.widen()
    assert torch.equal(life.net.predict(X).scores, before.scores)
    life.learn()
    with pytest.raises(TaskError, match="knows 2 tasks, and 3 are finished"):
        life.net.predict(X)
    data.append([(torch.randn(16, 5) - 3, torch.zeros(16).long())])
    life.net.train_router(data, epochs=50, progress=False)
    found = life.net.predict(data[2][0][0])
    assert (found.task == 2).float().mean() > 0.5


def test_train_task_and_learn(tmp_path: Path) -> None:
    def data(number: int) -> list[Any]:
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(64, 5, generator=generator)
        return [(x, (x[:, number % 5] > 0).long())]

    lessons = [autoeidetic.Lesson(train=data(n), test=data(n), classes=2) for n in range(3)]
    options = {"max_epochs": 3, "step": 0.2, "tolerance": 1.0, "most": 0.3, "progress": False}
    answers = []
    for _ in range(2):  # the second run resumes, and has nothing to do
        torch.manual_seed(len(answers))
        net: Any = autoeidetic.convert(mlp(), X, keep_head=False)
        autoeidetic.learn(net, lessons, tmp_path, on_full="widen", router="learned", **options)  # type: ignore[arg-type]
        answers.append(torch.stack(net.eval()(X, task="all")))
    assert len(net.columns) > 1
    assert torch.equal(*answers)
    run = autoeidetic.Run(tmp_path)
    assert run.matrix.backward_transfer() == 0.0


def test_threads(life: Life) -> None:
    net = life.net.eval()
    wrong: list[int] = []

    def ask() -> None:
        for _ in range(10):
            for task in (0, 3):
                with torch.no_grad():
                    if not torch.allclose(net(X, task=task), life.said[task], atol=1e-6):
                        wrong.append(task)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_compiled(life: Life) -> None:
    net = life.net.eval()
    compiled = torch.compile(net, backend="eager")
    with torch.no_grad():
        for task in range(4):
            assert torch.allclose(compiled(X, task=task), life.said[task], atol=1e-6)


# -- reports --------------------------------------------------------------------------------------


def test_capacity(life: Life) -> None:
    found = life.net.capacity()
    assert len(found.tasks) == 4
    assert found.free + found.hidden + sum(found.tasks) == pytest.approx(1)
    assert "columns.1.model.0" in str(found)
    assert all(len(share.tasks) == 4 for share in found.groups)


def test_draw(life: Life) -> None:
    """All columns in one drawing, with the tasks of each and what it reads of the others."""
    drawing = life.net.drawing()
    assert drawing.title == "Sequential"
    assert len(drawing.tasks) == 4
    paths = {node.path: node for node in drawing.nodes}
    lateral = paths["columns.1.2.lateral"]
    read = {role.group for role in lateral.groups if role.role == "input"}
    assert read == {group.id for group in drawing.groups if group.name == "columns.0.0"}
    owners = {group.name: drawing.ownership["groups"][group.id] for group in drawing.groups}
    assert owners["columns.0.0"][2:] == [0, 0]
    assert min(owners["columns.0.0"][:2]) > 0
    assert owners["columns.1.0"][:2] == [0, 0]
    assert min(owners["columns.1.0"][2:]) > 0
    blocks = drawing.ownership["blocks"]["columns.1.0"]
    assert {owner for owner, _ in blocks["levels"]} <= {2, 3, -1}
    assert "columns.1.2.lateral" in life.net.to_html()
    assert autoeidetic.visualize(life.net) == drawing
    life.check()


@pytest.mark.parametrize("task", [0, 2, [1, 3], "all"])
def test_draw_what_leaves(life: Life, task: Any) -> None:
    drawing = life.net.drawing(task=task)
    leaving = drawing.ownership["leaving"]
    assert leaving["parameters"] == [
        life.net.extract(task).report.parameters_after,
        life.net.extract(task).report.parameters_before,
    ]
    paths = {node.path: node.id for node in drawing.nodes if node.path}
    assert paths["columns.0.0"] not in leaving["gone"]
    assert (paths["columns.1.0"] in leaving["gone"]) == (task == 0)


def test_what_a_column_reads() -> None:
    """Only channels that finished tasks own leave a column, and every layer but the first reads."""
    life = Life(mlp(), X).learn(fraction=0.5)
    column = finished(life.net)
    assert set(column.sources) == {"2", "5"}
    found = laterals([column], (X,), {})
    assert {path: value[0].shape[-1] for path, value in found.items()} == {"2": 8, "5": 8}


# -- found by attacks -----------------------------------------------------------------------------


class WritesInput(nn.Module):
    """Changes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        return self.head(self.second(self.first(x).relu()).relu())


def test_a_model_that_writes_into_its_input() -> None:
    net: Any = autoeidetic.convert(WritesInput(), X.clone())
    net.prepare_for_task(0, num_classes=3)
    net.finish_task()
    net.widen(0.5)
    net.prepare_for_task(1, num_classes=3)
    net.finish_task()
    net.eval()
    given = X.clone()
    one = net(given, task=1)
    assert torch.equal(given, X + 1)  # as in a network without columns
    together = net(X.clone(), task="all")
    assert torch.equal(together[1], one)
    assert torch.equal(together[0], net(X.clone(), task=0))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.head, self.reentrant = nn.Linear(8, 3), reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        block = lambda x: x + self.b(self.a(x).relu())  # noqa: E731
        if self.training and self.reentrant is not None:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.reentrant)
        else:
            x = block(x)
        return self.head(x)


def test_activation_checkpointing() -> None:
    """Layers run again in the backward pass, and read the same values."""
    found = []
    for reentrant in (None, False, True):
        torch.manual_seed(0)
        net: Any = autoeidetic.convert(Checkpointed(reentrant), X)
        net.prepare_for_task(0, num_classes=3)
        net.finish_task()
        torch.manual_seed(1)
        net.widen(0.5)
        net.prepare_for_task(1, num_classes=3)
        net.train()
        net(X).square().sum().backward()
        found.append({n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None})
    assert any("lateral" in name for name in found[0])
    for other in found[1:]:
        assert found[0].keys() == other.keys()
        assert all(torch.allclose(found[0][n], other[n], atol=1e-6) for n in other)


def test_an_interrupted_widening_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(mlp(), X).learn()

    def interrupted(self: Any, mode: bool = True) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Wide, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            life.net.widen()
    assert not isinstance(life.net, Wide)
    life.check()
    life.learn().widen().learn()


def test_columns_share_a_lock(life: Life) -> None:
    """Two locks, taken in different order by two threads, would wait for each other."""
    for net in (life.net, copy.deepcopy(life.net)):
        locks = {id(column.pass_lock) for column in net.columns}
        assert locks == {id(column.pins.lock) for column in net.columns} == {id(net.pass_lock)}


def test_sizes_by_the_names_of_the_model() -> None:
    model, x = zoo.ZOO["two_heads"]()
    net: Any = autoeidetic.convert(model, x)
    names = [head.layer for head in net.call_plan.heads]
    sizes = dict(zip(names, (2, 5), strict=True))
    net.prepare_for_task(0, num_classes=sizes)
    net.finish_task()
    net.prepare_for_task(1, num_classes=sizes, on_full="widen")
    net.finish_task()
    assert net.tasks[1].classes == net.tasks[0].classes == sizes


def test_mistakes_leave_the_task_open() -> None:
    net: Any = autoeidetic.convert(mlp(), X)
    net.prepare_for_task(0, num_classes=2)
    with pytest.raises(InputError, match="width=7"):
        net.prepare_for_task(1, num_classes=2, on_full="widen", width=7)
    with pytest.raises(InputError, match="revisited"):
        net.prepare_for_task(1, revisit=0, on_full="widen")
    assert net.open_task == 0
    assert not isinstance(net, Wide)


def test_frozen_parameters_of_the_model_learn_in_a_column() -> None:
    model = mlp()
    for parameter in model[2].parameters():
        parameter.requires_grad_(False)
    net: Any = autoeidetic.convert(model, X)
    net.prepare_for_task(0, num_classes=2)
    net.finish_task()
    net.widen(0.5)
    net.prepare_for_task(1, num_classes=2)
    assert all(parameter.requires_grad for parameter in net.newest.backbone.parameters())


def test_what_users_pass_gets_the_network_itself(life: Life) -> None:
    net = life.net
    net.prepare_for_task(4, num_classes=2, on_full="reuse")
    got: list[Any] = []

    def step(network: Any, batch: Any) -> Any:
        got.append(network)
        output = network(batch[0])
        return F.cross_entropy(output, batch[1]), output, batch[1]

    data = [(X, torch.zeros(6).long())]
    history = net.train_task(data, step_function=step, max_epochs=1, prune=False, progress=False)
    assert all(each is net for each in got)
    assert {epoch.task for epoch in history.epochs} == {history.task} == {4}


def test_settings_hooks_and_pickles_in_the_middle(life: Life) -> None:
    net = life.net
    net.check_calls = False
    assert not any(column.check_calls for column in net.columns)
    net.check_calls = True
    net.prepare_for_task(4, num_classes=2, on_full="reuse")
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again.eval()(X), net.eval()(X))
    plain = Life(mlp(), X).learn().net
    seen: list[Any] = []
    plain.register_forward_hook(lambda *given: seen.append(len(given)), with_kwargs=True)
    plain.widen()
    plain(X, task=0)
    assert seen == [4]


def test_states_are_compared_as_a_whole(life: Life) -> None:
    state = life.net.state_dict()
    with pytest.raises(RuntimeError, match="nonsense"):
        life.net.load_state_dict({**state, "nonsense": torch.zeros(1)})
    missing = {name: value for name, value in state.items() if name != "columns.0.backbone.0.bias"}
    found = life.net.load_state_dict(missing, strict=False)
    assert found.missing_keys == ["columns.0.backbone.0.bias"]
    life.check()


class LayerDrop(nn.Module):
    """In train mode blocks are left out at random."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(5, 16), nn.Linear(16, 3)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if not self.training or torch.rand(()) > 0.5:
                x = x + block(x.relu())
        return self.head(x)


def test_widened_in_train_mode() -> None:
    life = Life(LayerDrop(), X, rehearse=False).learn(fraction=0.3)
    for _ in range(3):
        life.net.train()
        life.widen(0.5)
        life.net.train()
        life.learn(fraction=0.3)


def test_widened_while_others_ask() -> None:
    for _ in range(3):
        life = Life(mlp(), X).learn()
        errors: list[Exception] = []
        done = threading.Event()

        def ask(life: Life = life, errors: list[Exception] = errors, done: Any = done) -> None:
            while not done.is_set():
                try:
                    with torch.no_grad():
                        assert lives.same([life.net(X, task=0)], life.said)
                except Exception as error:
                    errors.append(error)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        life.net.widen(0.5)
        done.set()
        for thread in threads:
            thread.join()
        assert not errors
        life.check()


class TakesEarlierColumns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, earlier_columns: Any = None) -> Tensor:
        return self.head(self.body(x).relu())


def test_names_that_are_taken(life: Life) -> None:
    other = Life(TakesEarlierColumns(), X).learn()
    with pytest.raises(InputError, match="another name"):
        other.widen()
    other.check()
    for name in ("backbone", "heads"):
        with pytest.raises(InputError, match="cannot be replaced"):
            setattr(life.net, name, mlp())
    assert life.net.heads is life.net.newest.heads
