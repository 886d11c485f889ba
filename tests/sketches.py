"""Drawings made by hand, for what no model of reasonable size shows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><script>document.title='gone';alert(1)</script>",
    "<!--<script>",
    "a\u2028b\u2029c",
    "{{script}}",
    "__proto__",
    "javascript:alert(1)",
)


class Sketch:
    """A drawing in the agreed form, written line by line."""

    def __init__(self, title: str) -> None:
        self.drawing: dict[str, Any] = {
            "format": "autoeidetic-drawing",
            "version": 1,
            "title": title,
            "summary": {"parameters": 0, "groups": 0, "units": 0, "locked_share": 0.0},
            "modules": [],
            "nodes": [],
            "edges": [],
            "groups": [],
            "tasks": [],
            "ownership": {},
            "failure": None,
        }
        self.module("", "Net", None)

    def module(self, path: str, type: str, parent: str | None, **more: Any) -> str:
        modules = self.drawing["modules"]
        entry = {"id": f"m{len(modules)}", "path": path, "name": path.split(".")[-1], "type": type}
        modules.append(entry | {"parent": parent, "parameters": 1000, "repeat": None} | more)
        return entry["id"]

    def node(self, label: str, kind: str = "layer", module: str = "m0", **more: Any) -> str:
        entry = {"id": f"n{len(self.drawing['nodes'])}", "module": module, "kind": kind}
        entry |= {"label": label, "type": "Linear", "path": label, "shape": [2, 8]}
        entry |= {"parameters": 64, "parameter_shapes": {"weight": [8, 8]}, "units": 8}
        entry |= {"line": "net.py:7", "groups": [], "carries": [], "locked": "", "nested": False}
        self.drawing["nodes"].append(entry | more)
        return entry["id"]

    def edge(self, source: str, target: str, kind: str = "consumes", *groups: str) -> None:
        entry = {"source": source, "target": target, "kind": kind, "groups": list(groups)}
        self.drawing["edges"].append(entry | {"operator": "aten.linear", "line": "net.py:8"})

    def group(self, name: str, *nodes: str, **more: Any) -> str:
        groups = self.drawing["groups"]
        entry = {"id": f"g{len(groups)}", "name": name, "size": 8, "elements": 64}
        entry |= {"colour": len(groups), "nodes": list(nodes), "readers": [], "couplers": []}
        entry |= {"bonds": [], "requires": [], "locked": ""}
        layers = [node["path"] for node in self.drawing["nodes"] if node["id"] in nodes]
        entry["members"] = [
            {"layer": layer, "parameter": f"{layer}.weight", "role": "output", "elements": 64}
            for layer in layers
        ]
        groups.append(entry | more)
        return entry["id"]

    def chain(self, labels: list[str], module: str = "m0", **more: Any) -> list[str]:
        nodes = [self.node(label, module=module, **more) for label in labels]
        for source, target in pairwise(nodes):
            self.edge(source, target)
        return nodes


def repeated(blocks: int = 4) -> dict[str, Any]:
    """Equal blocks in a row, each with an inner module."""
    sketch = Sketch("repeated")
    last = sketch.node("input", "input", parameters=0)
    trunk = sketch.module("blocks", "Sequential", "m0")
    first = None
    for index in range(blocks):
        path = f"blocks.{index}"
        block = sketch.module(path, "Block", trunk)
        first = first or block
        sketch.drawing["modules"][-1]["repeat"] = {"of": first, "index": index, "count": blocks}
        inner = sketch.module(f"{path}.mlp", "Mlp", block)
        nodes = sketch.chain([f"{path}.norm"], block)
        nodes += sketch.chain([f"{path}.mlp.fc1", f"{path}.mlp.fc2"], inner)
        sketch.edge(nodes[0], nodes[1])
        sketch.edge(last, nodes[0], "normalises")
        last = nodes[-1]
    sketch.edge(last, sketch.node("output", "output", parameters=0), "coupled")
    return sketch.drawing


def tasks() -> dict[str, Any]:
    """Two layers, three tasks, a locked part, one edge of every kind."""
    sketch = Sketch("tasks")
    source = sketch.node("input", "input", parameters=0)
    first, second = sketch.chain(["first", "second"])
    gate = sketch.node("gate", "operator", type="aten.sigmoid", path="", parameters=0)
    norm = sketch.node("norm", locked="softmax at net.py:9 mixes all channels")
    sketch.edge(source, first)
    sketch.edge(second, gate, "gates")
    sketch.edge(second, norm, "normalises")
    sketch.edge(gate, norm, "coupled")
    sketch.drawing["tasks"] = [
        {"name": name, "index": index, "classes": 5}
        for index, name in enumerate(("birds", "cars", "flowers"))
    ]
    runs = [[0, 4], [1, 2], [2, 1], [-1, 1]]
    block = {"parameter": "weight", "levels": runs, "columns": [[-2, 1], *runs]}
    sketch.drawing["ownership"] = {
        "groups": {},
        "layers": {"first": [32, 16, 8], "second": [16, 16, 16]},
        "blocks": {"first": block},
        "forward_transfer": True,
    }
    return sketch.drawing


def leaving() -> dict[str, Any]:
    """What leaves with a task: a quarter of one layer, and nothing of the other."""
    drawing = tasks()
    first, second = (n["id"] for n in drawing["nodes"] if n["label"] in ("first", "second"))
    drawing["tasks"] = [{"name": "birds", "index": 0, "classes": 5}]
    drawing["ownership"] = {
        "groups": {},
        "layers": {"first": [16], "second": [0]},
        "leaving": {
            "nodes": {first: [4, 8, 16, 64], second: [0, 8, 0, 64]},
            "gone": [second],
            "parameters": [16, 1280],
        },
    }
    return drawing


def hostile() -> dict[str, Any]:
    """Markup in every place that holds a name."""
    sketch = Sketch(HOSTILE[2])
    last = sketch.node("input", "input", parameters=0)
    for name in HOSTILE:
        module = sketch.module(name, name, "m0")
        path = f"{name}.{name}"
        more = {"path": path, "type": name, "line": name, "locked": name, "label": name}
        node = sketch.node(module=module, parameter_shapes={name: [1]}, **more)
        bond = {"kind": name, "operator": name, "module": name, "line": name, "other": name}
        sketch.group(name, node, bonds=[bond], locked=name)
        sketch.drawing["nodes"][-1]["groups"] = [
            {"group": sketch.drawing["groups"][-1]["id"], "role": "output"}
        ]
        sketch.edge(last, node)
        last = node
    sketch.drawing["tasks"] = [{"name": name, "index": i, "classes": 1} for i, name in [(0, name)]]
    sketch.drawing["ownership"] = {"layers": {path: [3]}, "groups": {}, "blocks": {}}
    return sketch.drawing


def failed() -> dict[str, Any]:
    """The part that was captured, and where it ended."""
    sketch = Sketch("failed")
    nodes = [sketch.node("input", "input", parameters=0), *sketch.chain(["stem", "body"])]
    stop = sketch.node("failed here", "failure", type="aten.mystery", path="", parameters=0)
    sketch.edge(nodes[0], nodes[1])
    sketch.edge(nodes[-1], stop, "coupled")
    sketch.drawing["failure"] = {
        "module": "body",
        "operator": "aten.mystery",
        "line": "net.py:12",
        "message": "aten.mystery has no rule",
        "remedy": "Register one with autoeidetic.rule.",
    }
    return sketch.drawing


def large(stages: int = 10, blocks: int = 30, depth: int = 10) -> dict[str, Any]:
    """Thousands of nodes in blocks with a residual stream per stage; no two blocks are equal."""
    sketch = Sketch("large")
    last = sketch.node("input", "input", parameters=0)
    for stage in range(stages):
        outer = sketch.module(f"s{stage}", "Stage", "m0")
        stream = f"g{stage}"
        ends: list[str] = []
        for index in range(blocks):
            path = f"s{stage}.{index}"
            block = sketch.module(path, "Block", outer)
            nodes = sketch.chain([f"{path}.fc{i}" for i in range(depth - 1)], block)
            add = sketch.node("add", "operator", block, type="aten.add", path="", carries=[stream])
            sketch.edge(last, nodes[0], "consumes", stream)
            sketch.edge(last, add, "coupled", stream)
            sketch.edge(nodes[-1], add, "coupled", stream)
            ends.append(nodes[-1])
            last = add
        sketch.group(f"s{stage}", *ends)
    sketch.edge(last, sketch.node("output", "output", parameters=0), "coupled")
    return sketch.drawing
