"""Random lives: whatever is done to a network, finished tasks answer with their bits or refuse.

``AUTOEIDETIC_LIVES`` sets how many lives are tried (200), and ``AUTOEIDETIC_SEED`` from which block
of seeds on (0). ``python -m fuzz`` in this directory runs lives by hand.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from fuzz import actions, life, without
from fuzz.life import NOT_YET, Report, live
from fuzz.script import Script, Step, draw, step
from fuzz.shrink import shrunk
from fuzz.without import SAFEGUARDS

from autoeidetic import answering
from autoeidetic.pins import Pins
from benchmarks import lives

LIVES = int(os.environ.get("AUTOEIDETIC_LIVES", "200"))
FIRST = 100_000 * int(os.environ.get("AUTOEIDETIC_SEED", "0"))
SHARDS = 8


def told(report: Report) -> str:
    """A finding, the shortest way to it, and how to see it again."""
    short = shrunk(report)
    return f"{short.finding}\nafter {short.finding.step}, in\n{short.script}"  # type: ignore[union-attr]


#: Slow: what is compiled has tests of its own, and `benchmarks/lives.py` draws it as well.
SLOW = frozenset({"compiled"})


@pytest.mark.parametrize("shard", range(SHARDS))
def test_nothing_moves_in_random_lives(shard: int) -> None:
    finished = 0
    seeds = range(FIRST + shard, FIRST + LIVES, SHARDS)
    for seed in seeds:
        report = live(draw(seed), NOT_YET | SLOW)
        if report.finding is not None:
            pytest.fail(f"seed {seed}: {told(report)}")
        finished += report.finished
    assert finished > len(seeds), "most lives finish a task or two"


FOUND: dict[str, Script] = {}


@pytest.mark.parametrize("name", sorted(FOUND))
def test_found(name: str) -> None:
    """The shortest lives in which something moved."""
    report = live(FOUND[name])
    assert report.finding is None, told(report)


# -- the fuzzer itself ----------------------------------------------------------------------------

PLAIN = {
    "rehearse": False,
    "forward_transfer": True,
    "keep_head": False,
    "recycle": "reinit",
    "examples": 1,
}
TRAIN = {
    "optimizer": "adamw",
    "lr": 0.1,
    "steps": 2,
    "call": 0,
    "mode": "train",
    "under": "none",
    "clip": True,
    "over": "all",
}


def two_tasks(*more: Step, subject: str = "mlp 3 layer") -> Script:
    """Task 0 is finished, task 1 trained; then more."""
    steps = (
        step("prepare", 1, classes=3),
        step("train", 2, **TRAIN),
        step("prune", 3, fraction=0.5, by="l2"),
        step("finish", 4),
        step("prepare", 5, classes=4),
        step("train", 6, **TRAIN),
    )
    return Script(subject, 7, PLAIN, (*steps, *more))


def test_a_seed_is_a_life() -> None:
    assert draw(11) == draw(11)
    assert draw(11) != draw(12)
    first, again = live(draw(11)), live(draw(11))
    assert first.steps == again.steps
    assert first.refusals == again.refusals
    assert first.finished == again.finished


@pytest.mark.parametrize("seed", range(20))
def test_a_script_prints_as_python(seed: int) -> None:
    names = {"Script": Script, "step": step, "nan": float("nan"), "inf": float("inf")}
    assert str(eval(str(draw(seed)), names)) == str(draw(seed))


def test_every_action_is_drawn_and_runs() -> None:
    seen = set()
    for seed in range(400):
        for each in draw(seed).steps:
            seen |= {each.name}
    assert seen == set(actions.ACTIONS)


@pytest.mark.parametrize("name", sorted(set(actions.ACTIONS) - {"compiled"}))
def test_actions_are_not_all_tolerated(name: str) -> None:
    """Each does something on a plain network, and random numbers and settings stay."""
    before = torch.random.get_rng_state()
    rng, tolerated = Random(name), 0
    for _ in range(3):
        script = two_tasks(actions.drawn(rng, name))
        tolerated += bool(live(script, frozenset()).tolerated)
    assert tolerated < 3 or name in ("undo", "load_state", "memory_format")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_finding_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = [step("switch", 8, mode="eval"), step("keep_state", 9), step("torch_save", 10)]
    script = two_tasks(*noise, step("switch", 8, mode="train"))
    assert live(script).finding is None
    SAFEGUARDS["level norms"](monkeypatch)
    report = live(script)
    assert report.finding is not None
    assert report.finding.kind == "moved"
    short = shrunk(report)
    assert len(short.script.steps) < len(script.steps)
    assert not {each.name for each in short.script.steps} & {"switch", "keep_state", "torch_save"}
    assert short.finding is not None
    assert short.finding.cause == report.finding.cause


def test_an_error_of_torch_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("The size of tensor a (3) must match")

    monkeypatch.setattr(Pins, "bind", fail)
    report = live(two_tasks())
    assert report.finding is not None
    assert report.finding.cause == "raw | RuntimeError: The size of tensor a _ must match"
    assert report.finding.step == "convert"


def test_verify_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.actions.verified", lambda *_: False)
    report = live(two_tasks(step("verify", 1, call=0)))
    assert report.finding is not None
    assert report.finding.kind == "verify"


def test_settings_must_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(self: Any) -> None:
        torch.backends.mha.set_fastpath_enabled(False)

    monkeypatch.setattr(answering.Answering, "_follow", leave)
    report = live(two_tasks())
    assert report.finding is not None
    assert report.finding.kind == "globals"
    assert torch.backends.mha.get_fastpath_enabled()


#: Safeguards that must show within a few lives; benchmarks/lives.py tries all of them.
QUICK = ("pins", "nesting", "level norms", "heads read their own features")


@pytest.mark.parametrize("name", QUICK)
def test_a_safeguard_that_is_taken_out_is_missed(name: str) -> None:
    count, report = without.until_found(name, FIRST, 40, NOT_YET | SLOW)
    assert report is not None, f"not in {count} lives"


@pytest.mark.parametrize("name", sorted(SAFEGUARDS))
def test_safeguards_can_be_taken_out_and_are_back(name: str) -> None:
    with without.without(name):
        pass
    assert live(two_tasks()).finding is None


def test_several_examples_are_used_when_convert_takes_them() -> None:
    script = replace(two_tasks(subject="branch"), convert={**PLAIN, "examples": 2})
    report = live(script)
    assert report.finding is None
    assert life.several_examples() in (True, False)


# -- the benchmark --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_lives_are_recorded(tmp_path: Path) -> None:
    assert lives.main(["--lives", "3", "--workers", "1", "--into", str(tmp_path)]) == 0
    content = json.loads((tmp_path / "lives.json").read_text())
    assert content["command"].startswith("python benchmarks/lives.py --lives 3")
    (record,) = content["models"]
    assert record["model"] == "0-2"
    assert record["lives"] == 3
    assert record["findings"] == []
    assert record["steps"]["prepare"] >= 3
    assert "3 lives with" in (tmp_path / "lives.md").read_text()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_safeguard_taken_out_is_recorded(tmp_path: Path) -> None:
    arguments = ["--without", "nesting", "--lives", "20", "--into", str(tmp_path)]
    assert lives.main(arguments) == 0
    (record,) = json.loads((tmp_path / "lives-without.json").read_text())["models"]
    assert record["found"]
    assert record["cause"].startswith("moved")
    assert any("prepare" in line for line in record["script"])
    assert "| nesting |" in (tmp_path / "lives-without.md").read_text()


def test_findings_are_reported() -> None:
    finding = {"seed": 7, "finding": "moved: task 0", "script": ["Script('mlp', 7)"]}
    counts = {"lives": 1, "finished": 1, "steps": {"prepare": 2}, "refusals": {}}
    report = lives.lives_report([{"model": "7-7", "findings": [finding], **counts}])
    assert "1 lives with 1 finished tasks and 2 steps: 1 findings." in report
    assert "Seed 7: moved: task 0" in report
