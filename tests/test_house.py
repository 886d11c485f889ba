"""The house: rooms in the order of the data flow, no private reach-through, short listings."""

from __future__ import annotations

import ast
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import autoeidetic

PACKAGE = Path(autoeidetic.__file__).parent
#: Rooms and modules of the front door. Each imports only those before it.
ORDER = (
    "errors common capture propagate couple plan enforce calls tasks proof routing results "
    "training checkpoint report extract analyze draw widen net convert slim load learn __init__ "
    "commands __main__"
).split()
#: The one lazy import: what can be drawn is made before the room that draws it.
LAZY = {("report.drawable", "draw")}
FILES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """The dotted name of a module inside the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def room_of(module: str) -> str:
    return module.partition(".")[0] or "__init__"


def imported(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports, wherever in it."""
    folder = list(path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "autoeidetic":
                    yield alias.name.removeprefix("autoeidetic").removeprefix(".")
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                base = folder[: len(folder) - node.level + 1]
            elif module.split(".")[0] == "autoeidetic":
                base, module = [], module.removeprefix("autoeidetic").removeprefix(".")
            else:
                continue
            full = ".".join([*base, *([module] if module else [])])
            for alias in node.names:
                yield f"{full}.{alias.name}" if full else alias.name


def test_an_early_room_never_imports_a_later_one() -> None:
    position = {room: number for number, room in enumerate(ORDER)}
    wrong = []
    for path in FILES:
        here = room_of(name_of(path))
        for module in imported(path):
            there = room_of(module)
            if there not in position:  # a name that the front door exports
                there = "__init__"
            if position[there] > position[here] and (name_of(path), there) not in LAZY:
                wrong.append(f"{name_of(path)} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_every_room_is_in_the_order() -> None:
    rooms = {room_of(name_of(path)) for path in FILES}
    assert rooms == set(ORDER)


# -- private names -------------------------------------------------------------------------------

#: Private names of other packages for which there is no public way; each is used in few places.
FOREIGN = {
    "_C", "_functorch", "_get_dispatch_mode", "_TorchDispatchModeKey", "_get_tracing_state",
    "_disabled_torch_dispatch_impl", "_set_tracing_state", "_len_torch_dispatch_stack",
    "_current_graph_task_id", "_ops", "_VF", "_schema", "_overloadname", "_overloadpacket",
    "_local_scalar_dense", "_to_copy", "_guards_code", "_dynamo_marked_constant", "_cdata",
    "_version",
    "_BatchNorm", "_NormBase", "_parameters", "_buffers", "_modules", "_forward_hooks",
    "_forward_pre_hooks", "_global_forward_hooks", "_global_forward_pre_hooks",
    "_non_persistent_buffers_set", "_apply", "_getframe", "_assert",
}  # fmt: skip


def private_uses(path: Path) -> Iterator[str]:
    """Private names that a file takes from objects or modules that are not its own."""
    tree = ast.parse(path.read_text())
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls", *classes}
            if not own and node.attr not in FOREIGN:
                yield f"{name_of(path)}:{node.lineno} {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and (node.level or "autoeidetic" in str(node.module)):
            for alias in node.names:
                if is_private(alias.name):
                    yield f"{name_of(path)}:{node.lineno} imports {alias.name}"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def test_no_module_uses_private_names_of_another_object() -> None:
    found = [use for path in FILES for use in private_uses(path)]
    assert not found, "\n".join(found)


# -- the table -----------------------------------------------------------------------------------


def code_and_comments(path: Path) -> tuple[int, int]:
    """Lines with code or docstrings, and lines that are comments."""
    with open(path, "rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    filled = sum(1 for line in path.read_text().splitlines() if line.strip())
    return filled, len(comments)


def figures() -> dict[str, float]:
    """What a stranger meets: files side by side, comments, public names."""
    folders = Counter(path.parent for path in FILES)
    counted = [code_and_comments(path) for path in FILES]
    return {
        "modules at the root": folders[PACKAGE],
        "largest folder": max(folders.values()),
        "comment lines": sum(c for _, c in counted) / sum(n for n, _ in counted),
        "public names": len(autoeidetic.__all__),
        "longest file": max(filled for filled, _ in counted),
    }


@pytest.mark.parametrize(
    ("figure", "least", "most"),
    [
        ("modules at the root", 1, 10),
        ("largest folder", 1, 16),
        ("comment lines", 0.035, 0.12),
        ("public names", 1, 24),
        ("longest file", 1, 550),
    ],
)
def test_the_house_stays_in_order(figure: str, least: float, most: float) -> None:
    assert least <= figures()[figure] <= most, f"{figure}: {figures()[figure]}"


def test_public_names_only() -> None:
    assert dir(autoeidetic) == sorted(autoeidetic.__all__)


if __name__ == "__main__":
    for figure, value in figures().items():
        print(f"{figure}: {value:.3g}")
