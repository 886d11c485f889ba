"""Drawings of programs, and drawings of networks that show what leaves with a task."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from drawn_models import DRAWN, Residual, small_image
from extract.programs import MAKE
from torch import Tensor, nn

import autoeidetic
from autoeidetic.draw import Drawing, render
from autoeidetic.draw.elements import Node
from autoeidetic.errors import InputError, TaskError
from autoeidetic.extract.program import Program, in_modules, inputs_of
from draw.test_draw import SVG

GOLDEN = Path(__file__).parents[1] / "golden"


def converted(model: nn.Module, inputs: Tensor) -> autoeidetic.EideticNet:
    """A network with two finished tasks."""
    torch.manual_seed(0)
    net = autoeidetic.convert(model, inputs)
    for task, name in enumerate(("birds", "pets")):
        net.prepare_for_task(task, num_classes=2 + task, name=name)
        net.prune(0.5)
        net.finish_task()
    return net


@cache
def network(name: str) -> autoeidetic.EideticNet:
    make, inputs = DRAWN[name]
    torch.manual_seed(0)
    return converted(make(), inputs())


@cache
def extracted(name: str) -> Program:
    return network(name).extract("pets")


def shapes(node: Node) -> dict[str, tuple[int, ...]]:
    return {f"{node.path}.{name}": shape for name, shape in node.parameter_shapes.items()}


# -- golden files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["dot", "json", "svg"])
@pytest.mark.parametrize("kind", ["program", "leaving"])
def test_golden(kind: str, format: str, request: pytest.FixtureRequest) -> None:
    if kind == "program":
        drawing = extracted("residual").drawing("program")
    else:
        drawing = network("residual").drawing("leaving", task="pets")
    if format == "json":
        text = drawing.to_json(indent=1) + "\n"
    else:
        text = render(drawing, format).decode()
    path = GOLDEN / f"residual-{kind}.{format}"
    if request.config.getoption("--rewrite-golden"):
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} differs: pytest --rewrite-golden writes it anew"


# -- programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWN)
def test_a_program_is_drawn_in_the_modules_of_its_model(name: str) -> None:
    program, drawing = extracted(name), extracted(name).drawing()
    whole = network(name).drawing()
    assert [(m.path, m.type) for m in drawing.modules] == [(m.path, m.type) for m in whole.modules]
    assert {(n.path, n.kind, n.type) for n in drawing.nodes if n.path} == {
        (n.path, n.kind, n.type) for n in whole.nodes if n.path
    }
    sizes = {name: tuple(p.shape) for name, p in program.named_parameters()}
    drawn: dict[str, tuple[int, ...]] = {}
    for node in drawing.nodes:
        drawn |= shapes(node) if node.type != "Parameter" else {node.path: node.shape}
    assert drawn == sizes
    assert drawing.groups
    assert drawing.title == whole.title


@pytest.mark.parametrize("name", DRAWN)
def test_the_modules_of_a_program_compute_what_it_computes(name: str) -> None:
    program = extracted(name)
    given = inputs_of(program)
    with torch.no_grad():
        model = in_modules(program)
        assert torch.equal(model(**given), program(**given))
        assert torch.equal(model(*given.values()), program(**given))
    assert list(model.state_dict()) != []
    assert set(model.state_dict()) == set(program.state_dict())


def test_copies_and_files_are_drawn_alike(tmp_path: Path) -> None:
    program = extracted("residual")
    drawing = program.drawing()
    program.save(tmp_path / "program.safetensors")
    assert autoeidetic.load(tmp_path / "program.safetensors").drawing() == drawing
    assert copy.deepcopy(program).drawing() == drawing
    half = copy.deepcopy(program).to(torch.bfloat16)
    assert half.drawing().nodes == drawing.nodes
    again = pickle.loads(pickle.dumps(program))
    assert again.meta["autoeidetic"]["modules"] == program.meta["autoeidetic"]["modules"]


def test_methods_of_a_program(tmp_path: Path) -> None:
    program = extracted("residual")
    assert program.to_dot().startswith("digraph")
    assert program.to_mermaid().startswith("flowchart")
    assert "<graphml" in program.to_graphml()
    assert program.to_svg(tmp_path / "a.svg") == (tmp_path / "a.svg").read_text()
    assert program.to_html(tmp_path / "a.html") == (tmp_path / "a.html").read_text()
    shown = program._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "task pets" in shown
    autoeidetic.visualize(program, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_text() == (tmp_path / "b.svg").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_an_analysis_needs_no_inputs(name: str) -> None:
    """A program keeps the shapes of its inputs."""
    deps = autoeidetic.analyze(extracted(name))
    whole = autoeidetic.analyze(network(name).extract("pets"), DRAWN[name][1]())
    assert deps.to_dict() == whole.to_dict()
    assert all(node.target in dict(extracted(name).named_parameters()) for node in used(deps))


def used(deps: autoeidetic.Dependencies) -> list[torch.fx.Node]:
    parameters = deps.capture.parameters
    return [n for n in deps.capture.graph.find_nodes(op="get_attr") if n.target in parameters]


@pytest.mark.parametrize("name", MAKE)
def test_a_program_without_modules_is_drawn_flat(name: str) -> None:
    drawing = MAKE[name]().drawing()
    assert {node.type for node in drawing.nodes if node.kind == "layer"} == {"Parameter"}


class Reserved(nn.Module):
    """Modules whose names programs use themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.report, self.drawing = nn.Linear(4, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drawing(self.report(x).relu()).relu())


def test_names_that_a_program_uses_itself() -> None:
    drawing = converted(Reserved(), torch.randn(2, 4)).extract(0).drawing()
    layers = [(node.path, node.type) for node in drawing.nodes if node.kind in ("layer", "head")]
    assert layers == [("report_", "Linear"), ("drawing_", "Linear"), ("head", "Linear")]


class Twice(nn.Module):
    """A layer that is called twice, with something in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mix, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.mix(self.first(x)).relu()))


def test_a_module_called_twice_has_two_nodes() -> None:
    drawing = converted(Twice(), torch.randn(2, 4)).extract(0).drawing()
    labels = [node.label for node in drawing.nodes if node.kind in ("layer", "head")]
    assert labels == ["first", "mix", "mix #2", "head"]


# -- what leaves -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("task", ["birds", "pets", 1, ["birds", "pets"], "all"])
def test_what_leaves_is_what_the_program_has(task: int | str | list[str]) -> None:
    net = network("residual")
    drawing, program = net.drawing(task=task), net.extract(task)
    leaving = drawing.ownership["leaving"]
    assert leaving["parameters"] == [
        program.report.parameters_after,
        program.report.parameters_before,
    ]
    assert sum(parts[2] for parts in leaving["nodes"].values()) == program.report.parameters_after
    assert sum(parts[3] for parts in leaving["nodes"].values()) <= program.report.parameters_before
    assert leaving["gone"] == []
    assert drawing.tasks[0].name == ", ".join(program.report.tasks)
    sizes = {name: p.numel() for name, p in program.named_parameters()}
    for node in drawing.nodes:
        if node.kind == "layer":
            inside = [n for name, n in sizes.items() if name.startswith(f"{node.path}.")]
            assert drawing.ownership["layers"][node.path] == [sum(inside)]
            assert drawing.ownership["sizes"][node.path] == node.parameters


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_more_leaves_with_the_later_task(name: str) -> None:
    """It builds on the units of the first one."""
    net = network(name)
    counts = [net.drawing(task=task).ownership["leaving"]["nodes"] for task in (0, 1)]
    assert counts[0].keys() == counts[1].keys()
    for ident, (units, all_units, parameters, all_parameters) in counts[0].items():
        assert units <= counts[1][ident][0] <= all_units or all_units == units  # a head
        assert parameters <= counts[1][ident][2]
        assert parameters <= all_parameters


def test_levels_of_a_norm_count_once() -> None:
    """In a program such a norm has a tensor for each level."""
    drawing = network("transformer").drawing(task="pets")
    program = extracted("transformer")
    (norm,) = [node for node in drawing.nodes if node.path == "blocks.0.norm2"]
    own = [p.numel() for name, p in program.named_parameters() if f"{norm.path}." in name]
    units, all_units, parameters, all_parameters = drawing.ownership["leaving"]["nodes"][norm.id]
    assert sum(own) > parameters
    assert units < all_units
    assert parameters / all_parameters == units / all_units


class Folded(nn.Module):
    """A layer that sees no input: a program has its result."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.table, self.head = nn.Linear(4, 8), nn.Linear(2, 8), nn.Linear(8, 3)
        self.register_buffer("places", torch.randn(1, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.stem(x) + self.table(self.places)).tanh())


def test_a_result_of_parameters_alone_counts_for_its_layer() -> None:
    drawing = converted(Folded(), torch.randn(2, 4)).drawing(task="birds")
    (table,) = [node for node in drawing.nodes if node.path == "table"]
    leaving = drawing.ownership["leaving"]
    assert leaving["nodes"][table.id] == [4, 8, 4, 24]
    assert leaving["gone"] == []


class Forked(nn.Module):
    """A branch that may add nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.branch = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU())
        self.merge = nn.Linear(6, 8, bias=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head((x + self.merge(self.branch(x))).tanh())


def forked() -> Drawing:
    torch.manual_seed(0)
    net = autoeidetic.convert(Forked(), torch.randn(2, 4))
    net.prepare_for_task(0, num_classes=2, name="birds")
    net.prune(0.5)
    with torch.no_grad():
        net.backbone.merge.weight.zero_()
    net.finish_task()
    return net.drawing(task="birds")


def test_what_does_not_leave_at_all_is_faded() -> None:
    drawing = forked()
    nodes = {node.id: node for node in drawing.nodes}
    gone = {nodes[ident].path for ident in drawing.ownership["leaving"]["gone"]}
    assert gone - {"merge"} == {"branch.0", "branch.1", "branch.2", "branch.3"}
    counts = drawing.ownership["leaving"]["nodes"]
    (stem,) = [ident for ident, node in nodes.items() if node.path == "stem"]
    assert counts[stem] == [4, 8, 20, 40]
    svg = ElementTree.fromstring(render(drawing, "svg").decode())
    faded = [g for g in svg.iter(f"{SVG}g") if g.get("opacity")]
    texts = {text.text for g in faded for text in g.iter(f"{SVG}text")}
    assert {"0", "1", "2", "Linear  0 / 6 · 0 / 54"} <= texts
    assert "stem" not in texts
    closed = ElementTree.fromstring(render(drawing, "svg", 1).decode())
    faded = [g for g in closed.iter(f"{SVG}g") if g.get("opacity")]
    assert "Sequential · 0 / 96" in {text.text for g in faded for text in g.iter(f"{SVG}text")}


def test_pictures_say_what_leaves() -> None:
    net = network("residual")
    svg = ElementTree.fromstring(net.to_svg(task="birds"))
    texts = [element.text for element in svg.iter(f"{SVG}text")]
    assert {"leaves with birds (2 classes)", "stays"} <= set(texts)
    assert "free" not in texts
    drawing = net.drawing(task="birds")
    (stem,) = [node for node in drawing.nodes if node.path == "stem"]
    units, all_units, _, _ = drawing.ownership["leaving"]["nodes"][stem.id]
    assert 0 < units < all_units == stem.units
    assert any(f"Conv2d  {units} / {all_units} · " in str(text) for text in texts)


def test_the_network_stays_as_it_is() -> None:
    net, x = network("residual"), small_image()
    net.eval()
    before = net(x, task=0)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    net.drawing(task=0)
    assert torch.equal(net(x, task=0), before)
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


def test_mistakes_are_told() -> None:
    net = network("residual")
    with pytest.raises(TaskError, match="task 'cars' does not exist"):
        net.to_html(task="cars")
    deps = autoeidetic.analyze(Residual(), small_image())
    with pytest.raises(InputError, match="task='pets' and a Dependencies, which has no tasks"):
        deps.to_html(task="pets")
    with pytest.raises(InputError, match="which has no tasks"):
        extracted("residual").drawing(task=0)
