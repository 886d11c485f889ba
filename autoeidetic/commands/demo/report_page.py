"""The report: an outcome as one self-contained HTML file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path

import autoeidetic

from ... import EideticNet
from . import charts, story
from .outcome import Outcome

Image = Sequence[Sequence[float]]
#: Example images per task: one for each of its two digits.
_PER_TASK = 2


def to_html(
    outcome: Outcome, net: EideticNet, images: Sequence[Image] = (), *, verify: str = ""
) -> str:
    """The page; ``images`` show the digits 0 to 9, ``verify`` is the command that checks it."""
    names, ends = outcome.names, outcome.eidetic.boundaries
    parts = {
        "title": escape(f"{_count(len(names))} tasks, one network, nothing forgotten"),
        "style": _read("page.css"),
        "lead": escape(_lead(outcome)),
        "tasks": _tasks(names, images),
        "cards": _cards(outcome),
        "curves_eidetic": charts.accuracy_chart(
            outcome.eidetic.curves, ends, names, "Accuracy over time, autoeidetic"
        ),
        "curves_tuned": charts.accuracy_chart(
            outcome.tuned.curves, ends, names, "Accuracy over time, fine-tuning"
        ),
        "matrix_eidetic": _matrix(outcome.matrix.rows, names, "autoeidetic"),
        "matrix_tuned": _matrix(outcome.tuned_matrix.rows, names, "fine-tuning"),
        "average_eidetic": _percent(outcome.matrix.average()),
        "average_tuned": _percent(outcome.tuned_matrix.average()),
        "bits": escape(f"{story.changed(outcome)} {story.scrambled(outcome)}"),
        "proof": "good" if _kept(outcome) else "bad",
        "capacity": charts.capacity_chart(outcome.capacity, ends, names, "Owners of the network"),
        "groups": _groups(outcome),
        "routed": _percent(outcome.routed),
        "agnostic": _percent(outcome.agnostic),
        "router": charts.heat_map(
            _shares(outcome.confusion), names, "Tasks predicted by the router"
        ),
        "graph": escape(net.to_html(title=outcome.network)),
        "code": escape(_code(outcome)),
        "verify": escape(verify),
        "footer": escape(_footer(outcome)),
    }
    # A single pass: a placeholder inside a substituted part is never replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _read("page.html"))


@cache
def _read(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _lead(outcome: Outcome) -> str:
    return (
        f"A stock {outcome.network} from timm ({outcome.parameters:,} parameters) learns to "
        f"distinguish handwritten digits, two at a time: {outcome.train_images:,} training images, "
        f"{outcome.test_images:,} test images. Once a task is finished, the network is not trained "
        "on its images again. For comparison, the same network is fine-tuned in the ordinary way."
    )


def _tasks(names: Sequence[str], images: Sequence[Image]) -> str:
    return "".join(
        f'<div class="task t{task}"><span class="digits">'
        + "".join(
            # images: digits 0 to 9; task t shows 2t and 2t + 1
            charts.digit(image, "an example")
            for image in images[_PER_TASK * task : _PER_TASK * (task + 1)]
        )
        + f"</span>{escape(name)}</div>"
        for task, name in enumerate(names)
    )


def _cards(outcome: Outcome) -> str:
    proof = "good" if _kept(outcome) else "bad"
    ours, tuned = _percent(outcome.matrix.average()), _percent(outcome.tuned_matrix.average())
    tasks = len(outcome.names)
    return "".join(
        [
            _card(
                f"{outcome.changed:,}",
                f"of {outcome.logits:,} logits changed",
                "compared bit for bit",
                proof,
            ),
            _card(ours, "average accuracy at the end", f"fine-tuning: {tuned}"),
            _card(
                _percent(outcome.routed),
                "assigned to the right task by the router",
                f"task and digit correct: {_percent(outcome.agnostic)}",
            ),
            _card(
                _percent(outcome.free),
                "of the network free for further tasks",
                f"{_percent(1 - outcome.free)} used by {tasks} tasks",
            ),
        ]
    )


def _card(figure: str, meaning: str, beside: str, kind: str = "") -> str:
    return (
        f'<div class="card {kind}"><strong>{escape(figure)}</strong>'
        f'<span>{escape(meaning)}</span><span class="beside">{escape(beside)}</span></div>'
    )


def _matrix(rows: Sequence[Sequence[float]], names: Sequence[str], method: str) -> str:
    """The accuracy matrix, shaded from chance to perfect."""
    title = f"Accuracy after each task, {method}"
    return charts.heat_map(rows, names, title, lowest=charts.CHANCE, drops=True)


def _groups(outcome: Outcome) -> str:
    last = outcome.groups[-1]
    return "".join(
        f"<figure><figcaption><b>{escape(share.name)}</b>{share.size} channels, "
        f"{share.free} free</figcaption>"
        + charts.group_chart(
            [after[number] for after in outcome.groups], f"{share.name} after each task"
        )
        + "</figure>"
        for number, share in enumerate(last)
    )


def _shares(confusion: Sequence[Sequence[int]]) -> list[list[float]]:
    return [[count / max(sum(row), 1) for count in row] for row in confusion]


def _kept(outcome: Outcome) -> bool:
    return outcome.changed == 0 and outcome.scramble_proof


def _code(outcome: Outcome) -> str:
    arguments = "".join(f", {name}={value!r}" for name, value in outcome.arguments.items())
    return f"""\
model = timm.create_model("{outcome.network}", num_classes=2{arguments})
net = autoeidetic.convert(model, images)

for task, loader in enumerate(loaders):
    net.prepare_for_task(task, num_classes=2)
    net.train_task(loader, optimizer=torch.optim.AdamW(net.parameters(), lr=3e-3), ...)
    net.finish_task()

net.train_router(loaders)
net.predict(images).task"""


def _footer(outcome: Outcome) -> str:
    return (
        f"autoeidetic {autoeidetic.__version__}, seed {outcome.seed}, {outcome.seconds:.0f} "
        "seconds in total. This page loads no external resources."
    )


def _count(number: int) -> str:
    words = {2: "Two", 3: "Three", 4: "Four", 5: "Five"}
    return words.get(number, str(number))


def _percent(share: float) -> str:
    return f"{share:.1%}"
