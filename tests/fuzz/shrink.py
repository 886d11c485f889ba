"""Shrinking: the shortest script that ends in the same kind of finding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .life import NOT_YET, Report, live
from .script import Script, Step


def shrunk(report: Report, excluded: frozenset[str] = NOT_YET, tries: int = 150) -> Report:
    """Drop steps, quietness and options of convert for as long as the finding stays."""
    assert report.finding is not None
    cause, best = report.finding.cause, report
    smaller = True
    while smaller:
        smaller = False
        for script in _simpler(best.script):
            tries -= 1
            if tries < 0:
                return best
            tried = live(script, excluded)
            if tried.finding is not None and tried.finding.cause == cause:
                best, smaller = tried, True
                break
    return best


def _simpler(script: Script) -> Iterator[Script]:
    """Scripts with less in them: first without whole stretches, then without single steps."""
    count = len(script.steps)
    for size in sorted({count // 2, count // 4, 2, 1} - {0}, reverse=True):
        for start in range(count - size, -1, -size):
            yield replace(script, steps=script.steps[:start] + script.steps[start + size :])
    for number, step in enumerate(script.steps):
        for other in _plainer(step):
            yield replace(
                script, steps=(*script.steps[:number], other, *script.steps[number + 1 :])
            )
    for key, plain in {"rehearse": True, "forward_transfer": True, "examples": 1}.items():
        if script.convert[key] != plain:
            yield replace(script, convert={**script.convert, key: plain})


def _plainer(step: Step) -> Iterator[Step]:
    inner = step.options.get("inner")
    if isinstance(inner, Step):
        yield inner
    plain = {"optimizer": "sgd", "steps": 1, "mode": "eval", "under": "none", "over": "all"}
    changes = {key: value for key, value in plain.items() if step.options.get(key, value) != value}
    for key, value in changes.items():
        if step.name == "train":
            yield replace(step, options={**step.options, key: value})
    if step.quiet:
        yield replace(step, quiet=False)
