"""The rows of text on a card, and the size of a card."""

from __future__ import annotations

from dataclasses import dataclass

from ..elements import Drawing, Module, Node
from .folding import Card, Frame
from .text import TIMES, count_text, shortened, size_text, width

# Font sizes of names, notes and titles; heights of an ownership bar and a row; then widths.
TEXT = 11.0
NOTE = 9.5
TITLE = 12.0
BAR = 5.0
ROW = 20.0
PADDING = 10.0
MARK = 13.0
_BOLD = 1.06  # width of bold text relative to normal text
_SIGNS = {"aten.add": "+", "aten.mul": TIMES, "aten.sub": "-"}


@dataclass(frozen=True)
class Row:
    """One row of a card: a name, a note, marks at the end, and an ownership bar below.

    ``groups`` give its colours. ``shares``: the share of each task, empty without a bar.
    """

    name: str
    note: str
    groups: tuple[str, ...]
    locked: bool = False
    nested: bool = False
    shares: tuple[float, ...] = ()

    @property
    def height(self) -> float:
        return ROW + (BAR + 3 if self.shares else 0)

    @property
    def width(self) -> float:
        marks = MARK * (self.locked + self.nested)
        note = width(self.note, NOTE) + 8 if self.note else 0
        return width(self.name, TEXT) * _BOLD + note + marks + 2 * PADDING


def is_sign(card: Card) -> bool:
    """Whether the card is drawn as a small circle with an operator sign."""
    return len(card.nodes) == 1 and card.nodes[0].type in _SIGNS


def sign(card: Card) -> str:
    return _SIGNS[card.nodes[0].type]


def rows_of(card: Card, drawing: Drawing) -> tuple[Row, ...]:
    """The rows of a card: one for a closed module, else one for each node."""
    if card.closed is not None:
        module = card.closed
        count = f" {TIMES} {module.repeat.count}" if module.repeat else ""
        note = f"{module.type} · {_leaving_inside(module, drawing)}"
        # A closed module shows the shares of all layers in it together.
        inside = [s for s in _layer_shares(drawing) if s.startswith(f"{module.path}.")]
        shares = _shares(drawing, inside)
        return (Row(shortened(module.name) + count, shortened(note), (), shares=shares),)
    return tuple(_row(node, drawing) for node in card.nodes)


def _row(node: Node, drawing: Drawing) -> Row:
    if node.kind in ("input", "output", "failure"):
        note = size_text(node.shape) if node.kind != "failure" else node.type
        return Row(shortened(node.label), shortened(note), ())
    if node.type == "Parameter":
        note = TIMES.join(str(n) for n in node.shape) or "1"
    elif node.kind == "operator":
        note = node.type if node.path else ""
    elif any(part.role == "norm" for part in node.groups):
        note = node.type  # its result has the size of its input, which needs no mention
    else:
        note = f"{node.type}  {size_text(node.shape)}".strip()
    leaving = drawing.ownership.get("leaving", {})
    if node.id in leaving.get("nodes", ()):
        note = f"{node.type}  {_leaving(*leaving['nodes'][node.id])}".strip()
    # A layer has the colours of the groups it makes; an operator of those it passes on.
    own = tuple(dict.fromkeys(part.group for part in node.groups if part.role != "input"))
    # A parameter of a container is owned under the parameter's or the container's path.
    layers = [node.path, node.path.rpartition(".")[0]] if node.type == "Parameter" else [node.path]
    known = [layer for layer in layers if layer in _layer_shares(drawing)][:1]
    return Row(
        shortened(node.label),
        shortened(note, 44),
        own or node.carries,
        locked=bool(node.locked),
        nested=node.nested,
        shares=_shares(drawing, known) if node.kind == "layer" else (),
    )


def _leaving(units: int, all_units: int, parameters: int, all_parameters: int) -> str:
    """What leaves with a task, and all: of units, and of parameters."""
    parts = [f"{units:,} / {all_units:,}"] if all_units else []
    return " · ".join([*parts, f"{count_text(parameters)} / {count_text(all_parameters)}"])


def _leaving_inside(module: Module, drawing: Drawing) -> str:
    """The parameters in a module; for a task, those that leave with it and all."""
    counts = drawing.ownership.get("leaving", {}).get("nodes", {})
    found = [counts[node.id] for node in _inside(module, drawing) if node.id in counts]
    if not found:
        return count_text(module.parameters)
    return " / ".join(count_text(sum(each[place] for each in found)) for place in (2, 3))


def _inside(module: Module, drawing: Drawing) -> list[Node]:
    """The layers in a module, each once."""
    paths = {n.path: n for n in reversed(drawing.nodes) if n.path.startswith(f"{module.path}.")}
    return list(paths.values())


def is_faded(card: Card, drawing: Drawing) -> bool:
    """Whether nothing of a card leaves with the task that is drawn."""
    gone = drawing.ownership.get("leaving", {}).get("gone", ())
    nodes = card.nodes if card.closed is None else _inside(card.closed, drawing)
    return bool(nodes) and all(node.id in gone for node in nodes)


def _layer_shares(drawing: Drawing) -> dict[str, list[int]]:
    found: dict[str, list[int]] = drawing.ownership.get("layers", {})
    return found


def _shares(drawing: Drawing, layers: list[str]) -> tuple[float, ...]:
    """The share of each task in the elements of some layers."""
    if not layers:
        return ()
    # Summed before the division: large layers count more than small ones.
    totals = drawing.ownership["sizes"]
    whole = max(sum(totals[layer] for layer in layers), 1)
    owned = _layer_shares(drawing)
    return tuple(
        sum(owned[layer][task] for layer in layers) / whole for task in range(len(drawing.tasks))
    )


def card_size(card: Card, drawing: Drawing) -> tuple[float, float]:
    """Width and height of a card."""
    if is_sign(card):
        return 24.0, 24.0
    rows = rows_of(card, drawing)
    return max(44.0, *(row.width for row in rows)), sum(row.height for row in rows) + 4


def frame_title(frame: Frame) -> tuple[str, str]:
    """Name and note in the upper left corner of an open module."""
    module = frame.module
    count = f" {TIMES} {frame.count}" if frame.count > 1 else ""
    return f"{shortened(module.name)}{count}", f"{shortened(module.type)} · " + count_text(
        module.parameters
    )


def title_width(frame: Frame) -> float:
    name, note = frame_title(frame)
    return width(name, TITLE) * _BOLD + width(note, NOTE) + 34
