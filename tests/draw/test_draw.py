"""Drawings: the description, the formats made of it, failures and tasks."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections import defaultdict
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import networkx as nx
import pytest
import torch
from drawn_models import DRAWN, Broken, Residual, Words, small_image
from sweeps import only
from torch import Tensor, fx, nn
from zoo import ZOO

import autoeidetic
from autoeidetic.commands import main
from autoeidetic.draw import FORMATS, Drawing, describe, render, save, visualize
from autoeidetic.draw.elements import FREE, INPUT
from autoeidetic.draw.picture.folding import fold
from autoeidetic.errors import EnforcementError, InputError, MissingPackageError
from autoeidetic.report.dependencies import Dependencies

GOLDEN = Path(__file__).parents[1] / "golden"
SVG = "{http://www.w3.org/2000/svg}"
#: Each of them means something somewhere: in HTML, XML, DOT, Mermaid, JavaScript or a path.
HOSTILE = (
    "<script>alert(1)</script>",
    "\"quoted\" 'too'",
    "back\\slash\\n",
    "new\nline\ttab\rreturn",
    "]]> --> ]) end",
    "-- %% #35; &amp; `x` ${y}",
    "ключ 模型 \U0001f600 \u2028",
    "nul\x00bell\x07esc\x1b\ufffe",
    "</title></svg>",
    "\ud800",
)


def analysed(name: str) -> Dependencies:
    make, inputs = DRAWN[name]
    torch.manual_seed(0)
    return autoeidetic.analyze(make(), inputs())


def hostile_drawing() -> Drawing:
    """A network of modules with all these names, one in the other and one after the other."""
    net = nn.Sequential()
    for name in HOSTILE:
        block = nn.Sequential()
        block.add_module(name.replace(".", " "), nn.Linear(4, 4))
        block.add_module("act", nn.ReLU())
        net.add_module(name.replace(".", " "), block)
    net.add_module("head", nn.Linear(4, 2))
    deps = autoeidetic.analyze(net, torch.randn(2, 4))
    return describe(deps, title=" ".join(HOSTILE))


# -- golden files ------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["dot", "mmd", "json", "svg"])
@pytest.mark.parametrize("name", DRAWN)
def test_golden(name: str, format: str, request: pytest.FixtureRequest) -> None:
    drawing = describe(analysed(name), title=name)
    if format == "json":
        text = drawing.to_json(indent=1) + "\n"
    else:
        text = render(drawing, format).decode()
    path = GOLDEN / f"{name}.{format}"
    if request.config.getoption("--rewrite-golden"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} differs: pytest --rewrite-golden writes it anew"


@pytest.mark.slow
def test_a_drawing_is_the_same_in_another_process() -> None:
    code = (
        "import autoeidetic, torch; from draw.test_draw import analysed, describe, render;"
        "d = describe(analysed('gated'), title='gated');"
        "print(render(d, 'svg').decode() + d.to_json())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    drawing = describe(analysed("gated"), title="gated")
    assert run.stdout == render(drawing, "svg").decode() + drawing.to_json() + "\n"


# -- the description ---------------------------------------------------------------------------


def test_a_residual_stream_has_the_members_that_the_analysis_gives() -> None:
    deps = analysed("residual")
    drawing = describe(deps)
    stream = next(group for group in drawing.groups if len(group.nodes) > 5)
    nodes = {node.id: node for node in drawing.nodes}
    convs = ["stem", *(f"stage1.{i}.{c}" for i in range(3) for c in ("conv2", "bn2"))]
    assert sorted(nodes[n].path for n in stream.nodes) == sorted(convs)
    assert [nodes[n].type for n in stream.couplers] == ["aten.add"] * 3
    readers = [f"stage1.{i}.conv1" for i in range(3)]
    readers += ["stage2.0.conv1", "stage2.0.shortcut"]
    assert sorted(nodes[n].path for n in stream.readers) == sorted(readers)
    lit = {node.id for node in drawing.nodes if any(p.group == stream.id for p in node.groups)}
    assert lit == {*stream.nodes, *stream.readers}


@pytest.mark.parametrize("name", DRAWN)
def test_every_group_is_drawn_with_exactly_its_layers(name: str) -> None:
    deps = analysed(name)
    drawing = describe(deps)
    nodes = {node.id: node for node in drawing.nodes}
    assert [(g.name, g.size) for g in drawing.groups] == [(g.name, g.size) for g in deps.groups]
    for drawn, group in zip(drawing.groups, deps.groups, strict=True):
        assert {nodes[n].path for n in drawn.nodes} == set(group.layers)
        read = {m.layer for m in group.members if m.role == "input"}
        assert {nodes[n].path for n in drawn.readers} == read


@pytest.mark.filterwarnings("ignore::autoeidetic.errors.UnhandledOperatorWarning")
@pytest.mark.parametrize("name", ZOO)
def test_every_description_holds_together(name: str) -> None:
    model, inputs = ZOO[name]()
    deps = autoeidetic.analyze(model, inputs)
    drawing = describe(deps)
    data = json.loads(drawing.to_json())
    assert data == drawing.to_dict()
    nodes = {node.id: node for node in drawing.nodes}
    groups = {group.id for group in drawing.groups}
    known: set[str | None] = {None}
    for module in drawing.modules:  # parents come first
        assert module.parent in known
        known.add(module.id)
    assert len(nodes) == len(drawing.nodes)
    assert {node.module for node in drawing.nodes} <= known
    for edge in drawing.edges:
        assert int(edge.source[1:]) < int(edge.target[1:])
        assert set(edge.groups) <= groups
        assert edge.kind in ("consumes", "coupled", "gates", "normalises")
    for node in drawing.nodes:
        assert {part.group for part in node.groups} | set(node.carries) <= groups
    for drawn, group in zip(drawing.groups, deps.groups, strict=True):
        assert drawn.nodes, f"{group.name} is nowhere in the drawing"
        assert set(drawn.nodes) | set(drawn.readers) | set(drawn.couplers) <= set(nodes)
    assert fold(drawing).cards


@pytest.mark.parametrize("name", DRAWN)
def test_arrows_lead_where_values_go(name: str) -> None:
    """Two layers are connected in the drawing when, and only when, they are in the graph."""
    deps = analysed(name)
    drawing = describe(deps)
    drawn = nx.DiGraph([(edge.source, edge.target) for edge in drawing.edges])
    captured = nx.DiGraph()
    for node in deps.capture.graph.nodes:
        captured.add_edges_from((source, node) for source in node.all_input_nodes)
    steps: dict[str, list[fx.Node]] = defaultdict(list)
    for node in deps.capture.graph.nodes:
        if node.op == "call_function":
            steps[node.meta["module"]].append(node)
    layers = {
        n.path: n.id for n in drawing.nodes if n.kind in ("layer", "head") and n.path in steps
    }
    assert len(layers) > 3
    for one, left in layers.items():
        for two, right in layers.items():
            if one != two:
                pairs = product(steps[one], steps[two])
                goes = any(nx.has_path(captured, source, target) for source, target in pairs)
                assert nx.has_path(drawn, left, right) == goes


def test_kinds_of_edges() -> None:
    drawing = describe(analysed("transformer"))
    labels = {node.id: node.label for node in drawing.nodes}
    kinds = {(labels[e.source], labels[e.target], e.kind) for e in drawing.edges}
    assert {
        ("norm1", "qkv", "consumes"),
        ("qkv", "attention", "gates"),
        ("qkv", "attention", "coupled"),
        ("add", "norm2", "normalises"),
        ("proj", "add", "coupled"),
        ("position", "add", "coupled"),
    } <= kinds
    gated = describe(analysed("gated"))
    types = {node.id: node.type for node in gated.nodes}
    gates = [(types[e.source], types[e.target]) for e in gated.edges if e.kind == "gates"]
    assert gates == [("aten.sigmoid", "aten.mul")] * 2


def test_locked_parts_say_why() -> None:
    drawing = describe(analysed("gated"))
    (spatial,) = [node for node in drawing.nodes if node.label == "spatial"]
    assert spatial.locked
    assert [group.locked for group in drawing.groups if group.name == "spatial"] == [spatial.locked]
    assert not any(node.locked for node in drawing.nodes if node.label == "stem")


def test_nested_norms_are_marked() -> None:
    drawing = describe(analysed("transformer"))
    nested = {node.label for node in drawing.nodes if node.nested}
    assert nested == {"norm1", "norm2"}


def test_a_module_called_twice_has_two_nodes() -> None:
    drawing = describe(analysed("words"))
    mixes = [node for node in drawing.nodes if node.path == "mix"]
    assert [node.label for node in mixes] == ["mix", "mix #2"]
    group = next(g for g in drawing.groups if mixes[0].id in g.nodes)
    assert {node.id for node in mixes} <= set(group.nodes)


def test_tied_weights_are_drawn_at_both_places() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mix = nn.Embedding(7, 4), nn.Linear(4, 4)
            self.out = nn.Linear(4, 7, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.mix(self.embed(x)))

    drawing = describe(autoeidetic.analyze(Tied(), torch.zeros(2, 3, dtype=torch.long)))
    shapes = {node.label: node.parameter_shapes for node in drawing.nodes}
    assert shapes["embed"] == shapes["out"] == {"weight": (7, 4)}
    labels = {node.id: node.label for node in drawing.nodes}
    assert any({"embed", "out"} <= {labels[n] for n in g.nodes} for g in drawing.groups)


def test_lines_have_no_folders_of_this_machine() -> None:
    text = describe(analysed("residual")).to_json()
    assert "tests/drawn_models.py:" in text
    assert str(Path(__file__).parent) not in text


# -- folding -----------------------------------------------------------------------------------


def test_equal_blocks_are_one_run() -> None:
    drawing = describe(analysed("transformer"))
    runs = {m.path: m.repeat for m in drawing.modules if m.repeat is not None}
    assert list(runs) == [f"blocks.{i}" for i in range(4)]
    assert [(run.index, run.count) for run in runs.values()] == [(i, 4) for i in range(4)]
    assert len({run.of for run in runs.values()}) == 1


def test_blocks_of_other_sizes_are_no_run() -> None:
    drawing = describe(analysed("residual"))
    runs = {m.path: m.repeat.count for m in drawing.modules if m.repeat is not None}
    assert runs == {"stage1.0": 3, "stage1.1": 3, "stage1.2": 3}


def test_blocks_that_widen_or_stand_side_by_side_are_no_run() -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.arms = nn.ModuleList([_arm(4, 4) for _ in range(3)])
            self.chain = nn.Sequential(_arm(4, 5), _arm(5, 6), _arm(6, 7), _arm(7, 7))
            self.head = nn.Linear(7, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.chain(sum(arm(x) for arm in self.arms)))

    drawing = describe(autoeidetic.analyze(Parallel(), torch.randn(2, 4)))
    assert [m.path for m in drawing.modules if m.repeat] == ["chain.2", "chain.3"]


def _arm(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


def test_a_run_in_a_run_is_shown_once() -> None:
    stages = [nn.Sequential(*[_arm(4, 4) for _ in range(3)]) for _ in range(2)]
    net = nn.Sequential(nn.Sequential(*stages), nn.Linear(4, 2))
    drawing = describe(autoeidetic.analyze(net, torch.randn(2, 4)))
    counts = {m.path: m.repeat.count for m in drawing.modules if m.repeat}
    assert counts == {f"0.{i}": 2 for i in range(2)} | {
        f"0.{i}.{j}": 3 for i in range(2) for j in range(3)
    }
    shown = [node.path for card in fold(drawing).cards for node in card.nodes]
    assert shown == ["", "0.0.0.0", "0.0.0.1", "0.0.0.2", "1", ""]


def test_a_folded_view_keeps_the_way_from_input_to_output() -> None:
    for name in DRAWN:
        drawing = describe(analysed(name))
        for depth in (1, 2, 3, None):
            view = fold(drawing, depth)
            cards = {card.id: card for card in view.cards}
            graph = nx.DiGraph([(link.source, link.target) for link in view.links])
            (start,) = [c for c in cards if cards[c].nodes and cards[c].nodes[0].kind == "input"]
            (end,) = [c for c in cards if cards[c].nodes and cards[c].nodes[0].kind == "output"]
            assert nx.has_path(graph, start, end)
            assert set(graph) == set(cards)
            assert nx.is_directed_acyclic_graph(graph)


def test_a_closed_module_is_one_card() -> None:
    view = fold(describe(analysed("transformer")), 1)
    closed = [card.closed.path for card in view.cards if card.closed is not None]
    assert closed == ["blocks"]


def test_the_picture_says_how_many_blocks_there_are() -> None:
    svg = render(describe(analysed("transformer")), "svg").decode()
    texts = [e.text for e in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert "0 \u00d7 4" in texts
    assert "consumes: a weight reads it" in texts


# -- formats and hostile names -----------------------------------------------------------------


def test_hostile_names_in_svg_and_graphml_are_text() -> None:
    drawing = hostile_drawing()
    svg = ElementTree.fromstring(render(drawing, "svg"))
    assert {element.tag.removeprefix(SVG) for element in svg.iter()} <= {
        *("svg", "g", "title", "defs", "marker", "path", "rect", "text", "circle")
    }
    titles = [element.text or "" for element in svg.iter(f"{SVG}title")]
    assert any("<script>alert(1)</script>" in title for title in titles)
    graph = nx.read_graphml(io.BytesIO(render(drawing, "graphml")))
    assert graph.number_of_nodes() == len(drawing.nodes)
    assert graph.number_of_edges() == len(drawing.edges)
    paths = [data["path"] for _, data in graph.nodes(data=True)]
    assert any("</title></svg>" in path for path in paths)


def test_hostile_names_in_dot_stay_between_quotes() -> None:
    text = render(hostile_drawing(), "dot").decode()
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "S", text)
    assert outside.count("{") == outside.count("}")
    for line in outside.splitlines()[1:-1]:
        assert re.fullmatch(r"[\w\s\[\]{}=,;.>-]*", line), line
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)
    tooltips = re.findall(r'tooltip="((?:[^"\\]|\\.)*)"', text)
    meant = {re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), tip) for tip in tooltips}
    for name in ("\"quoted\" 'too'", "back\\slash\\n", "<script>alert(1)</script>"):
        assert f"{name}.{name}" in meant


def test_hostile_names_in_mermaid_are_numbers() -> None:
    text = render(hostile_drawing(), "mmd").decode()
    for line in text.splitlines()[1:]:
        assert re.fullmatch(
            r'\s*(subgraph m\d+\["[\w#;.,:/·+… \u00d7]*"\]|end'
            r'|n\d+(\[\[?|\(\[)"([\w#;.,:/·+… \u00d7]|<br>)*"(\]\]?|\]\))'
            r"|n\d+ (-->|==>|-\. \w+ \.->) n\d+|style n\d+ [\w:#,-]+)",
            line,
        ), line


def test_hostile_names_come_back_from_json() -> None:
    drawing = hostile_drawing()
    data = json.loads(render(drawing, "json"))
    assert data["title"] == drawing.title
    assert [node["path"] for node in data["nodes"]] == [node.path for node in drawing.nodes]


def test_png_is_a_picture(tmp_path: Path) -> None:
    from PIL import Image

    save(describe(analysed("words")), tmp_path / "words.png")
    with Image.open(tmp_path / "words.png") as image:
        assert image.format == "PNG"
        assert image.width > 500
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 10


@pytest.mark.parametrize("format", only(set(FORMATS) - {"png", "svg"}, FORMATS))
def test_files_are_written_in_the_format_their_name_tells(format: str, tmp_path: Path) -> None:
    path = tmp_path / f"drawing.{format}"
    drawing = visualize(Residual(), path, small_image(), title="residual")
    assert path.read_bytes() == render(drawing, format)


def test_methods_of_an_analysis(tmp_path: Path) -> None:
    deps = analysed("unet")
    assert deps.to_dot().startswith("digraph")
    assert deps.to_mermaid().startswith("flowchart")
    assert "<graphml" in deps.to_graphml()
    assert deps.to_svg(tmp_path / "a.svg") == (tmp_path / "a.svg").read_text()
    assert deps.to_png(tmp_path / "a.png") == (tmp_path / "a.png").read_bytes()
    assert deps.to_html(tmp_path / "a.html") == (tmp_path / "a.html").read_text()
    assert json.loads(deps.to_json())["captured_by"] == "meta"  # the analysis, not the drawing
    assert deps.drawing("u").title == "u"


def test_a_notebook_shows_the_page_and_the_table() -> None:
    shown = analysed("words")._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "<pre>" in shown
    inner = shown[len('<iframe srcdoc="') :].partition('"')[0]
    assert not set("<>") & set(inner)


def test_unknown_formats_and_places_are_told() -> None:
    drawing = describe(analysed("words"))
    with pytest.raises(InputError, match="'pdf' is not a drawing format"):
        render(drawing, "pdf")
    with pytest.raises(InputError, match="cannot be written"):
        save(drawing, "/nowhere/at/all.json")
    with pytest.raises(InputError, match="visualize"):
        visualize(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("package", "format"), [("py_mini_racer", "svg"), ("resvg_py", "png")])
def test_a_missing_package_is_told(
    package: str, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=r"autoeidetic\[viz\]"):
        render(describe(analysed("words")), format)


# -- failures ----------------------------------------------------------------------------------


def test_a_failure_is_drawn_where_it_happens() -> None:
    drawing = visualize(Broken(), example_inputs=torch.randn(2, 4))
    assert drawing.failure is not None
    assert drawing.failure.module == "blocks.1"
    assert drawing.failure.line.startswith("tests/drawn_models.py:")
    assert "invalid for input of size 8" in drawing.failure.message
    *others, failure = drawing.nodes
    assert (failure.kind, failure.path) == ("failure", "blocks.1")
    paths = [node.path for node in others if node.kind == "layer"]
    assert paths == ["stem", "blocks.0.one", "blocks.0.two", "blocks.1.one"]
    (edge,) = [edge for edge in drawing.edges if edge.target == failure.id]
    (source,) = [node for node in others if node.id == edge.source]
    assert source.type == "aten.relu"
    modules = {module.id: module.path for module in drawing.modules}
    assert modules[failure.module] == modules[source.module] == "blocks.1"


@pytest.mark.parametrize("format", FORMATS)
def test_failures_in_every_format(format: str) -> None:
    drawing = visualize(Broken(), example_inputs=torch.randn(2, 4))
    content = render(drawing, format)
    if format not in ("png", "html"):
        assert b"failed here" in content


def test_a_failure_of_a_layer_comes_after_what_it_was_given() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4), nn.Linear(4, 2))
    drawing = visualize(net, example_inputs=torch.randn(2, 4))
    (edge,) = [edge for edge in drawing.edges if edge.target == drawing.nodes[-1].id]
    assert drawing.nodes[int(edge.source[1:])].path == "0"
    assert drawing.failure is not None
    assert drawing.failure.module == "1"


@pytest.mark.usefixtures("forget")
def test_a_failure_of_the_analysis_is_drawn_in_the_whole_graph() -> None:
    @autoeidetic.rule(torch.ops.aten.tanh.default)
    def wrong(algebra: object, x: object) -> None:
        raise ValueError("a rule with a mistake")

    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    drawing = visualize(net, example_inputs=torch.randn(2, 4))
    assert drawing.failure is not None
    assert "a rule with a mistake" in drawing.failure.message
    kinds = [node.kind for node in drawing.nodes]
    assert kinds == ["input", "layer", "operator", "layer", "output", "failure"]
    (edge,) = [edge for edge in drawing.edges if edge.target == drawing.nodes[-1].id]
    assert drawing.nodes[int(edge.source[1:])].type == "Tanh"


def test_missing_inputs_are_an_error_and_no_drawing() -> None:
    with pytest.raises(InputError, match="no example inputs"):
        visualize(Broken())


# -- tasks -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def net() -> autoeidetic.EideticNet:
    torch.manual_seed(0)
    net = autoeidetic.convert(Residual(), small_image())
    for task, name in enumerate(("birds", "cars", "flowers")):
        net.prepare_for_task(task, num_classes=2 + task, name=name)
        net.prune(0.5)
        if task < 2:
            net.finish_task()
    return net


def test_ownership_adds_up(net: autoeidetic.EideticNet) -> None:
    drawing = net.drawing()
    assert [(t.name, t.index, t.classes) for t in drawing.tasks] == [
        ("birds", 0, 2),
        ("cars", 1, 3),
        ("flowers", 2, 4),
    ]
    used = net.owners.levels[1:] < 3
    for group in drawing.groups:
        owned = drawing.ownership["groups"][group.id]
        classes = next(g.units for g in net.call_plan.plan.groups if g.name == group.name)
        assert sum(owned) == int(used[[c - 1 for c in classes]].sum())
        assert 0 < sum(owned) < group.size
    for layer, owned in drawing.ownership["layers"].items():
        parameters = net.backbone.get_submodule(layer).parameters()
        assert drawing.ownership["sizes"][layer] == sum(p.numel() for p in parameters)
        assert sum(owned) <= drawing.ownership["sizes"][layer]


def test_blocks_of_weights_add_up(net: autoeidetic.EideticNet) -> None:
    blocks = net.drawing().ownership["blocks"]
    assert set(blocks) >= {"stem", "stage1.0.conv1", "stage2.0.shortcut"}
    for layer, block in blocks.items():
        weight = net.backbone.get_submodule(layer).get_parameter(block["parameter"])
        for runs, size in zip((block["levels"], block["columns"]), weight.shape, strict=False):
            assert sum(count for _, count in runs) == size
            assert {owner for owner, _ in runs} <= {INPUT, FREE, 0, 1, 2}
    assert blocks["stem"]["columns"] == [[INPUT, 3]]


def test_drawing_a_network_leaves_it_as_it_was(net: autoeidetic.EideticNet) -> None:
    x = small_image()
    net.eval()
    before = net(x, task=0)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    kinds = [type(module) for module in net.modules()]
    net.drawing()
    assert kinds == [type(module) for module in net.modules()]
    assert torch.equal(net(x, task=0), before)
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert net.verify(x).ok


def test_pictures_show_who_owns_what(net: autoeidetic.EideticNet) -> None:
    svg = ElementTree.fromstring(net.to_svg())
    texts = [element.text for element in svg.iter(f"{SVG}text")]
    assert {"birds (2 classes)", "cars (3 classes)", "flowers (4 classes)", "free"} <= set(texts)
    ownership = net.drawing().ownership
    sizes = ownership["sizes"]
    wanted = {
        tuple(round(part / sizes[layer], 2) for part in parts)
        for layer, parts in ownership["layers"].items()
    }
    assert set(_bars(svg)) == wanted
    assert "<iframe" in net._repr_html_()


def _bars(svg: ElementTree.Element) -> list[tuple[float, ...]]:
    """The bars of a picture: how much of its length each task has."""
    thin = [rect for rect in svg.iter(f"{SVG}rect") if rect.get("height") == "5"]
    found: list[list[float]] = []
    whole = 1.0
    for rect in thin:
        length = float(rect.get("width", ""))
        if rect.get("fill") == "#dfe4ea":  # what is free lies under the others
            found.append([])
            whole = length
        else:
            found[-1].append(round(length / whole, 2))
    return [tuple(bar) for bar in found]


def test_a_network_without_tasks_is_drawn_without_bars() -> None:
    drawing = autoeidetic.convert(Words(), torch.zeros(2, 7, dtype=torch.long)).drawing()
    assert drawing.tasks == ()
    assert drawing.ownership == {}


def test_a_changed_backbone_is_told() -> None:
    net = autoeidetic.convert(Residual(), small_image())
    net.backbone.stage1 = nn.Sequential(net.backbone.stage1[0])
    with pytest.raises(EnforcementError, match="other groups"):
        net.drawing()


# -- the command -------------------------------------------------------------------------------


def test_the_command_writes_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shape = ["--input", "2,5,3"]
    assert main(["visualize", "drawn_models:Transformer", *shape, "--format", "dot"]) == 0
    assert capsys.readouterr().out.strip() == "drawn_models_Transformer.dot"
    assert (tmp_path / "drawn_models_Transformer.dot").read_text().startswith("digraph")
    out = str(tmp_path / "b.svg")
    assert main(["visualize", "drawn_models:Transformer", *shape, "-o", out]) == 0
    whole = (tmp_path / "b.svg").read_text()
    command = ["visualize", "drawn_models:Transformer", *shape, "-o", out, "--depth", "1"]
    assert main(command) == 0
    assert len((tmp_path / "b.svg").read_text()) < len(whole) / 2


def test_the_command_draws_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "broken.json")
    command = ["visualize", "drawn_models:Broken", "--input", "2,4", "-o", out]
    assert main(command) == 0
    assert "drawn in part" in capsys.readouterr().err
    assert json.loads(Path(out).read_text())["failure"]["module"] == "blocks.1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["resnet18", "-o", "a.pdf"], "does not end in a drawing format"),
        (["no_such_model"], "timm has no model"),
        (["drawn_models:Gated"], "no example inputs"),
        (
            ["drawn_models:Gated", "--input", "2,3,8,8", "-o", "/no/a.dot"],
            "cannot be written",
        ),
    ],
)
def test_the_command_tells_in_one_line_what_is_wrong(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["visualize", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
