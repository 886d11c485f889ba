"""``autoeidetic demo``: a shortened run, what it says, and its page."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import autoeidetic
from autoeidetic import EideticNet, TrainConfig, commands
from autoeidetic.commands.demo import NETWORK, RECORD, REPORT, story
from autoeidetic.commands.demo.compare import Listener, compare
from autoeidetic.commands.demo.data import SIZE, all_test_images, digit_tasks, examples
from autoeidetic.commands.demo.eidetic import Eidetic
from autoeidetic.commands.demo.finetuning import fine_tune
from autoeidetic.commands.demo.networks import FineTuned, stock_network
from autoeidetic.commands.demo.outcome import Outcome
from autoeidetic.commands.demo.report_page import to_html
from autoeidetic.common.bits import different

TASKS = 3
#: An epoch, a round of pruning whatever it costs, an epoch of settling.
SHORT = TrainConfig(max_epochs=1, step=0.7, most=0.7, tolerance=1.0, settle_epochs=1)


class Hearing(Listener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.expected: list[int] = []
        self.epochs: list[str] = []

    def tell(self, text: str) -> None:
        self.told.append(text)

    def expect(self, epochs: int) -> None:
        self.expected.append(epochs)

    def epoch(self, what: str) -> None:
        self.epochs.append(what)


@pytest.fixture(scope="module")
def hearing() -> Hearing:
    return Hearing()


@pytest.fixture(scope="module")
def learned(hearing: Hearing) -> tuple[Outcome, EideticNet]:
    return compare(digit_tasks(TASKS, most_images=64), 3, SHORT, hearing)


@pytest.fixture(scope="module")
def outcome(learned: tuple[Outcome, EideticNet]) -> Outcome:
    return learned[0]


@pytest.fixture(scope="module")
def page(learned: tuple[Outcome, EideticNet]) -> str:
    return to_html(*learned, examples(), verify="autoeidetic verify a&b")


# -- data and networks --------------------------------------------------------------------------


def test_tasks() -> None:
    tasks = digit_tasks()
    assert [task.name for task in tasks] == ["0 or 1", "2 or 3", "4 or 5", "6 or 7", "8 or 9"]
    learned_from = [image for task in tasks for image, _ in task.train.dataset]
    tested_on = all_test_images(tasks)
    assert len(learned_from) + len(tested_on) == 1797
    assert tested_on.shape[1:] == (1, SIZE, SIZE)
    assert {image.numpy().tobytes() for image in learned_from}.isdisjoint(
        image.numpy().tobytes() for image in tested_on
    )
    for task in tasks:
        ((_, labels),) = task.test
        assert labels.unique().tolist() == [0, 1]


def test_both_networks_are_the_same() -> None:
    def shapes(model: torch.nn.Module) -> dict[str, torch.Size]:
        named = dict(model.named_parameters())
        return {name: p.shape for name, p in named.items() if not name.startswith("fc.")}

    assert shapes(FineTuned(TASKS).body) == shapes(stock_network())


# -- the outcome --------------------------------------------------------------------------------


def test_nothing_changes(outcome: Outcome) -> None:
    assert outcome.changed == 0
    assert outcome.scramble_proof
    assert outcome.logits == TASKS * 2 * outcome.test_images
    assert outcome.matrix.backward_transfer() == 0.0


def test_matrices(outcome: Outcome) -> None:
    for record in (outcome.eidetic, outcome.tuned):
        assert [len(row) for row in record.rows] == [1, 2, 3]
        assert all(0 <= value <= 1 for row in record.rows for value in row)
    assert outcome.matrix.names == ("0 or 1", "2 or 3", "4 or 5")


def test_curves_end_where_the_matrices_do(outcome: Outcome) -> None:
    for record in (outcome.eidetic, outcome.tuned):
        assert record.boundaries == outcome.eidetic.boundaries  # the same budget
        for task, points in record.curves.items():
            start = record.boundaries[task - 1] if task else 0
            assert [x for x, _ in points] == list(range(start + 1, record.boundaries[-1] + 1))
            assert points[-1][1] == record.rows[-1][task]


def test_curves_of_finished_tasks_are_flat(outcome: Outcome) -> None:
    for task, points in outcome.eidetic.curves.items():
        after = [y for x, y in points if x >= outcome.eidetic.boundaries[task]]
        assert set(after) == {outcome.eidetic.rows[task][task]}


def test_capacity(outcome: Outcome) -> None:
    for moment in outcome.capacity:
        assert sum(moment.tasks) + moment.free == pytest.approx(1)
    assert 0.1 < outcome.free < 0.5
    assert len(outcome.groups) == TASKS
    for after, shares in enumerate(outcome.groups):
        assert {len(share.tasks) for share in shares} == {after + 1}
        assert all(sum(share.tasks) + share.free == share.size for share in shares)


def test_router(outcome: Outcome) -> None:
    assert sum(map(sum, outcome.confusion)) == outcome.test_images
    right = sum(outcome.confusion[task][task] for task in range(TASKS))
    assert outcome.routed == right / outcome.test_images
    assert 0 < outcome.agnostic <= 1


def test_epochs_that_were_expected_are_those_that_came(outcome: Outcome, hearing: Hearing) -> None:
    assert len(hearing.epochs) == hearing.expected[-1]
    assert {"learning: 0 or 1", "pruning: 2 or 3", "fine-tuning: 4 or 5"} <= set(hearing.epochs)


# -- the count of changed logits counts ---------------------------------------------------------


@pytest.fixture
def taught() -> Eidetic:
    tasks = digit_tasks(1, most_images=32)
    pupil = Eidetic(tasks, SHORT, lambda epoch: None)
    pupil.learn(0)
    return pupil


def test_one_bit_is_counted(taught: Eidetic) -> None:
    assert taught.changed_logits() == 0
    then = taught.answers[0]
    then[5, 1] = torch.nextafter(then[5, 1], torch.tensor(torch.inf))
    assert taught.changed_logits() == 1


def test_other_answers_are_counted(taught: Eidetic) -> None:
    """A network that answers from other weights than on the day."""
    taught.images = taught.images + 1e-3
    assert taught.changed_logits() > taught.answers[0].numel() / 2


def test_fine_tuning_changes_logits() -> None:
    tasks = digit_tasks(2, most_images=32)
    images, model = all_test_images(tasks), FineTuned(2).eval()
    then = model(images, 0).detach()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    F.cross_entropy(model(images, 1), torch.zeros(len(images), dtype=torch.int64)).backward()
    optimizer.step()
    assert different(then, model(images, 0).detach()).sum() > then.numel() / 2


def test_fine_tuning_follows_the_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[float] = []
    monkeypatch.setattr(
        "autoeidetic.commands.demo.finetuning._train",
        lambda *inputs: used.append(inputs[-1].param_groups[0]["lr"]),
    )
    fine_tune(digit_tasks(2), [[0.3, 0.1], [0.2]], lambda number: None)
    assert used == [0.3, 0.1, 0.2]


# -- the story ----------------------------------------------------------------------------------


def test_story(outcome: Outcome, hearing: Hearing) -> None:
    told = "\n".join([*hearing.told, story.ending(outcome)])
    assert "resnet10t" in told
    for name in outcome.names:
        assert f"  {name}: " in told
    assert f"0 of {outcome.logits:,} logits changed: every finished task" in told
    assert f"{outcome.free:.1%} of the network is still free" in told
    assert max(map(len, told.splitlines())) <= 100
    assert len(told.splitlines()) < 45


def test_a_changed_logit_is_told(outcome: Outcome) -> None:
    assert "2 of 10 logits changed: this is a bug" in story.ending(
        replace(outcome, changed=2, logits=10)
    )


# -- the page -----------------------------------------------------------------------------------


def test_page(page: str, outcome: Outcome) -> None:
    assert f"0 of {outcome.logits:,} logits changed" in page
    own, frame = re.sub(r'data-page="[^"]*"', "", page), re.findall(r'data-page="([^"]*)"', page)
    assert len(frame) == 1
    assert unescape(frame[0]).startswith("<!doctype html>")
    assert "layer1.0.conv1" in own
    assert "autoeidetic verify a&amp;b" in own
    assert "{{" not in own
    assert not re.search(r"""(src|href)="|url\(|@import|https?:""", own)


def test_page_escapes(learned: tuple[Outcome, EideticNet]) -> None:
    outcome, net = learned
    strange = replace(outcome, names=("<i>a", 'b"', "{{style}}"), network="<script>")
    page = to_html(strange, net, verify="<u>")
    assert not re.search("<i>|<u>|<script>alert", page)
    assert page.count("<script>") == 1  # its own
    assert "learning {{style}}" in page


def test_page_of_a_failure(learned: tuple[Outcome, EideticNet]) -> None:
    outcome, net = learned
    page = to_html(replace(outcome, changed=7), net)
    assert 'class="proof bad"' in page
    assert 'class="card bad"' in page


# -- the command --------------------------------------------------------------------------------


@pytest.fixture
def folder(
    tmp_path: Path, learned: tuple[Outcome, EideticNet], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Where the command writes; it finds everything learned already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autoeidetic.commands.demo.compare.compare", lambda *_, **__: learned)
    return tmp_path / "autoeidetic-demo"


def test_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["demo"]) == 0
    printed = capsys.readouterr().out
    assert "logits changed" in printed
    assert (folder / REPORT).as_uri() in printed
    assert sorted(path.name for path in folder.iterdir()) == sorted([REPORT, NETWORK, RECORD])
    assert commands.main(["demo", "--quiet"]) == 0  # once more, in the same folder


def test_json(
    folder: Path, outcome: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(["demo", "--json", "--output", str(tmp_path / "there")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["changed"] == 0
    assert told["logits"] == outcome.logits
    assert [row[: task + 1] for task, row in enumerate(told["accuracy"]["rows"])] == (
        outcome.eidetic.rows
    )
    assert told["free"] == outcome.free
    assert told["confusion"] == [list(row) for row in outcome.confusion]
    assert Path(told["report"]) == tmp_path / "there" / REPORT
    assert json.loads((tmp_path / "there" / RECORD).read_text()) == told


def test_the_saved_network_is_that_one(folder: Path, outcome: Outcome) -> None:
    assert commands.main(["demo", "--quiet"]) == 0
    net = autoeidetic.load(folder / NETWORK, model=stock_network())
    tests = [task.test for task in digit_tasks(TASKS)]
    assert list(autoeidetic.evaluate(net, tests).accuracy.values()) == outcome.eidetic.rows[-1]
    command = json.loads((folder / RECORD).read_text())["verify"]
    assert commands.main(shlex.split(command)[1:]) == 0


def test_a_changed_logit_fails(
    folder: Path, learned: tuple[Outcome, EideticNet], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = replace(learned[0], changed=1), learned[1]
    monkeypatch.setattr("autoeidetic.commands.demo.compare.compare", lambda *_, **__: broken)
    assert commands.main(["demo", "--quiet"]) == 1


def test_being_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("autoeidetic.commands.demo.compare.compare", stop)
    assert commands.main(["demo"]) == 130
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("output", ["file", "file/below", "full"])
def test_folders_that_will_not_do(
    folder: Path, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("mine")
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("mine")
    assert commands.main(["demo", "--output", output]) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert len(printed.err.splitlines()) == 1
    assert "choose another --output" in printed.err
    assert Path("file").read_text() == "mine"
    assert [path.name for path in Path("full").iterdir()] == ["thesis.tex"]


# -- the page in a browser ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from draw import test_page

    if not (test_page.CHROMIUM and test_page.DRIVER):
        pytest.skip("needs Debian's chromium and chromium-driver")
    started = test_page.start_browser()
    yield started
    started.quit()


def until(browser: Any, script: str) -> None:
    limit = time.monotonic() + 60
    while not browser.execute_script(script):
        assert time.monotonic() < limit, f"never true: {script}"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_in_a_browser(
    browser: Any, page: str, tmp_path: Path, outcome: Outcome, scheme: str
) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    (tmp_path / REPORT).write_text(page, encoding="utf-8")
    browser.get((tmp_path / REPORT).as_uri())

    def count(selector: str) -> int:
        return len(browser.find_elements("css selector", selector))

    for figure in ("#curves-eidetic", "#curves-tuned"):
        assert count(f"{figure} .curve polyline") == TASKS
        assert count(f"{figure} .band") == TASKS
    for matrix in ("#matrix-eidetic", "#matrix-tuned"):
        assert count(f"{matrix} .heat") == TASKS * (TASKS + 1) / 2
    assert count("#router .heat") == TASKS**2
    assert count("#capacity .area") == TASKS
    assert count("#groups svg") == len(outcome.groups[-1])
    assert f"0 of {outcome.logits:,} logits" in browser.find_element("id", "bits").text
    width = "return document.documentElement.scrollWidth <= innerWidth"
    assert browser.execute_script(width)
    graph_is_drawn(browser, scheme)
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def graph_is_drawn(browser: Any, scheme: str) -> None:
    frame = browser.find_element("tag name", "iframe")
    assert not frame.get_attribute("srcdoc")  # out of sight, where it could not be laid out
    browser.find_element("css selector", ".graph button").click()
    until(browser, "return document.querySelector('iframe').srcdoc !== ''")
    browser.switch_to.frame(frame)
    until(browser, "return document.documentElement.dataset.ready !== undefined")
    inside = """return [...graph.querySelectorAll(".box")].every((box) => {
        const [seen, frame] = [box, graph].map((part) => part.getBoundingClientRect());
        return seen.left >= frame.left && seen.right <= frame.right && seen.bottom <= frame.bottom;
    })"""
    until(browser, inside)  # it knew the size of its frame
    assert browser.execute_script("return document.documentElement.dataset.theme") == scheme
    assert len(browser.find_elements("css selector", "#graph .box")) > 5
    assert browser.find_element("id", "timeline").is_displayed()  # the slider over tasks
    browser.switch_to.default_content()
