"""Random lives: whatever is done to a network, finished tasks answer with their bits or refuse.

``AUTOEIDETIC_LIVES`` sets how many lives are tried (200), and ``AUTOEIDETIC_SEED`` from which block
of seeds on (0). ``python -m fuzz`` in this directory runs lives by hand.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from fuzz import actions, life, without
from fuzz.life import Report, live
from fuzz.script import Script, Step, draw, step
from fuzz.shrink import shrunk
from fuzz.without import SAFEGUARDS

from autoeidetic.enforce.pins import Pins
from autoeidetic.tasks import network
from benchmarks import lives

#: An interruption that is simulated may come while a finalizer runs, where Python ignores it aloud.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

LIVES = int(os.environ.get("AUTOEIDETIC_LIVES", "200"))
FIRST = 100_000 * int(os.environ.get("AUTOEIDETIC_SEED", "0"))
SHARDS = 8


def told(report: Report) -> str:
    """A finding, the shortest way to it, and how to see it again."""
    short = shrunk(report)
    return f"{short.finding}\nafter {short.finding.step}, in\n{short.script}"  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_nothing_moves_in_random_lives(shard: int) -> None:
    finished = 0
    seeds = range(FIRST + shard, FIRST + LIVES, SHARDS)
    for seed in seeds:
        report = live(draw(seed))
        if report.finding is not None:
            pytest.fail(f"seed {seed}: {told(report)}")
        finished += report.finished
    assert finished > len(seeds), "most lives finish a task or two"


# -- lives that were found ------------------------------------------------------------------------

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


def finished(*more: Step, subject: str = "mlp 3 layer") -> Script:
    """Task 0 is finished; then more."""
    script = two_tasks(subject=subject)
    return replace(script, steps=(*script.steps[:4], *more))


#: The shortest lives in which something went wrong; see NOT_YET for those that still do.
FOUND: dict[str, Script] = {
    # what the example did not show
    "a branch on data": two_tasks(subject="branch"),
    "a layer for long inputs": two_tasks(subject="long inputs"),
    "experts": two_tasks(subject="experts"),
    "a mask token": two_tasks(subject="optional mask"),
    "more outputs": two_tasks(subject="hidden states"),
    "streams of other lengths": two_tasks(subject="two streams"),
    "a view of another size": two_tasks(subject="viewed as image"),
    "experts in a file": two_tasks(
        step("save_load", 8, after="go on with the copy"), subject="experts"
    ),
    # the life of a network
    "overflow": two_tasks(
        step("diverge", 1, lr=1e5, steps=2, mode="train", call=0),
        step("finish", 2),
        subject="mlp 7 none",
    ),
    "overflow, compiled": two_tasks(
        step("diverge", 1, lr=1e5, steps=2, mode="train", call=0),
        step("compiled", 2, backend="eager", call=0),
        subject="mlp 7 none",
    ),
    "a stray batch": finished(
        step("bad_batch", 8, value=math.nan, mode="train", call=0), subject="mlp 1 batch"
    ),
    "another head on the open task": two_tasks(
        step("edit_head", 8, task=1, how="exchange"),
        step("train", 9, **TRAIN),
        step("finish", 10),
    ),
    "another head on a finished task": two_tasks(
        step("edit_head", 8, task=0, how="exchange"), step("prepare", 9, classes=4)
    ),
    "a head in a Sequential": finished(
        step("edit_head", 8, task=0, how="sequential"), subject="features"
    ),
    "a head that is deleted": two_tasks(
        step("edit_head", 8, task=0, how="delete"), step("prune", 9, fraction=0.5, by="l1")
    ),
    "heads that are deleted": two_tasks(
        step("edit_head", 8, task=1, how="delete all"), step("finish", 9)
    ),
    "a head put back": two_tasks(
        step("edit_head", 8, task=1, how="sequential"),
        step("prune", 9, fraction=0.5, by="l1"),
        step("undo", 10),
        step("save_load", 11, after="go on with the original"),
    ),
    "a layer at the end": finished(step("edit_module", 8, number=0, how="append")),
    "a layer that does not fit": finished(step("edit_module", 8, number=0, how="add")),
    "a layer wrapped, then copied": two_tasks(
        step("edit_module", 8, True, number=0, how="wrap"),
        step("deepcopy", 9, after="go on with the copy"),
    ),
    "a layer gone, then rolled back": two_tasks(
        step("edit_module", 8, True, number=0, how="identity"), step("rollback", 9)
    ),
    "an answer in the middle of a step": two_tasks(step("threads", 8, task=0, while_="step")),
    "the store through state_dict": finished(
        step("write", 8, where="state_dict", what="noise", way="data")
    ),
    "the store through buffers": finished(
        step("write", 8, where="buffers", what="noise", way="new data")
    ),
    "an average, up to the last bit": two_tasks(
        *(
            step("write", 8 + number, where="parameters", what="average", way="data")
            for number in range(3)
        )
    ),
    "bfloat16 and back": finished(step("dtype", 8, via="bfloat16", meanwhile="nothing")),
    "half and back": finished(step("dtype", 8, via="half", meanwhile="ask")),
    # clear words
    "a trace": finished(step("misuse", 8, what="trace")),
    "a trillion classes": finished(step("misuse", 8, what="many classes")),
    "saved nowhere": finished(step("misuse", 8, what="save nowhere")),
    # an interruption while torch and the modules are put back as they were
    "a switch of torch left off": Script(
        "mlp 3 layer",
        162609,
        PLAIN,
        (
            step("prepare", 695, classes=3),
            *(
                step("interrupt", 504, after=number, inner=step("finish", 906))
                for number in range(2600, 3600, 100)
            ),
        ),
    ),
    # found when all of these were mended
    "transformer layers of torch, compiled": Script(
        "words",
        427377,
        {**PLAIN, "rehearse": True, "recycle": "keep"},
        (
            step("prepare", 880, classes=3),
            step("prune", 304, fraction=0.8, by="l1"),
            step("finish", 302),
            step("compiled", 695, backend="eager", call=0),
        ),
    ),
    "a weight norm without its units": Script(
        "blocks 467928",
        910630,
        {**PLAIN, "rehearse": True, "keep_head": True, "recycle": "keep"},
        (
            step("prepare", 216, classes=4),
            step("prune", 653, fraction=0.8, by="l2"),
            step("prepare", 274, classes=5),
            step("diverge", 851, lr=10000.0, steps=3, mode="train", call=7),
        ),
    ),
    "opened under autocast": Script(
        "zoo block_diagonal",
        567942,
        {**PLAIN, "rehearse": True},
        (
            step(
                "within",
                588,
                context="autocast",
                inner=step("save_load", 351, quiet=True, after="go on with the copy"),
            ),
        ),
    ),
}


@pytest.mark.parametrize("name", sorted(FOUND))
def test_found(name: str) -> None:
    """The shortest lives in which something moved."""
    report = live(FOUND[name])
    assert report.finding is None, told(report)


# -- the fuzzer itself ----------------------------------------------------------------------------


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


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(actions.ACTIONS))
def test_actions_are_not_all_tolerated(name: str) -> None:
    """Each does something on a plain network, and random numbers and settings stay."""
    before = torch.random.get_rng_state()
    rng, tolerated = Random(name), 0
    for _ in range(3):
        script = two_tasks(actions.drawn(rng, name))
        tolerated += bool(live(script, frozenset()).tolerated)
    assert tolerated < 3 or name in ("undo", "load_state", "memory_format")
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.slow
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
    monkeypatch.setattr("fuzz.tasks.cries", lambda _: True)
    report = live(two_tasks(step("verify", 1, call=0)))
    assert report.finding is not None
    assert report.finding.kind == "verify"


def test_settings_must_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(self: Any) -> None:
        torch.backends.mha.set_fastpath_enabled(False)

    monkeypatch.setattr(network.Network, "follow", leave)
    report = live(two_tasks())
    assert report.finding is not None
    assert report.finding.kind == "globals"
    assert torch.backends.mha.get_fastpath_enabled()


#: Safeguards that must show within a few lives; benchmarks/lives.py tries all of them.
QUICK = ("pins", "nesting", "level norms", "heads read their own features")


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_safeguard_that_is_taken_out_is_missed(name: str) -> None:
    count, report = without.until_found(name, FIRST, 40)
    assert report is not None, f"not in {count} lives"


@pytest.mark.slow
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


@pytest.mark.slow
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
