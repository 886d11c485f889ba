"""Audit: a file that was changed is found out, the right task is named, and no network moves."""

from __future__ import annotations

import copy
import json
import pickle
import random
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import lives
import numpy as np
import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from zoo import ZOO

import autoeidetic
from autoeidetic import commands
from autoeidetic.checkpoint import Audit
from autoeidetic.common import archive, files
from autoeidetic.common.files import to_json
from autoeidetic.errors import CheckpointError, InputError
from autoeidetic.net import EideticNet
from autoeidetic.proof import seals
from autoeidetic.tasks import reference
from checkpoint.test_checkpoint import Caches, bits, edit, everything, small, started, task

# -- helpers --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of files are written here, and none of them must survive a power cut."""
    monkeypatch.setattr(files, "to_disk", lambda path: None)


def normed(units: int = 6) -> nn.Module:
    norm = nn.BatchNorm1d(units)
    return nn.Sequential(nn.Linear(3, units), norm, nn.ReLU(), nn.Linear(units, 2))


def learned(tasks: int = 2, units: int = 6, **options: Any) -> EideticNet:
    """A small network with running statistics after some tasks."""
    x = torch.randn(4, 3)
    net = autoeidetic.convert(lives.randomise(normed(units)), x, **options)
    for number in range(tasks):
        task(net, x, number)
    return net


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A network with two finished tasks, in a file."""
    learned().save(tmp_path / "net")
    return tmp_path / "net"


def audit(path: Path, units: int = 6, digest: Any = None) -> Audit:
    return autoeidetic.audit(path, normed(units), digest=digest)


def verdicts(report: Audit) -> list[str]:
    return [each.verdict for each in report.tasks]


def edit_without_digest(path: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Other values under the old header: the digest of the file no longer fits."""
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    change(tensors)
    save_file(tensors, path, header)


def sealed(path: Path, number: int) -> Any:
    """The seal of a task as a file has it."""
    return archive.read(path)[0]["tasks"][number]["seal"]


def edit_seal(path: Path, number: int, change: Callable[[Any], Any]) -> None:
    edit(path, lambda description, _: change(description["tasks"][number]["seal"]))


# -- untouched ------------------------------------------------------------------------------------

#: Running statistics, tables of indices, recurrences, computed weights, ties, integers and
#: dictionaries as inputs, heads of several kinds.
MODELS = """
conv_bn_relu residual layer_norm lstm std_conv tied_linear swin_block embedding dict_input two_heads
dense_prediction einsum_parameter buffer_mask unused_parameter
""".split()


@pytest.mark.parametrize("name", MODELS)
def test_an_untouched_file_passes(name: str, tmp_path: Path) -> None:
    model, inputs = ZOO[name]()
    net = started(lambda: model, inputs, "between tasks")
    task(net, inputs, 1)
    net.save(tmp_path / "net")
    report = autoeidetic.audit(tmp_path / "net", ZOO[name]()[0])
    assert report.ok, str(report)
    assert [each.outputs.same for each in report.tasks] == [True, True]
    assert report.tasks[0].values > 0
    assert "every finished task is what it was when it was finished" in str(report)


@pytest.mark.parametrize(
    "options", [{"keep_head": True}, {"forward_transfer": False}, {"recycle": "keep"}]
)
def test_options_of_networks(options: dict[str, Any], tmp_path: Path) -> None:
    net = learned(**options)
    net.save(tmp_path / "net")
    assert audit(tmp_path / "net").ok
    head = "backbone.3.bias" if "keep_head" in options else "heads.0.3.bias"
    edit(tmp_path / "net", lambda _, tensors: tensors[head].add_(1))
    assert list(audit(tmp_path / "net").tasks[0].changed) == [head]


def test_a_model_of_timm_needs_no_model(tmp_path: Path) -> None:
    net = autoeidetic.convert(timm.create_model("test_resnet", num_classes=2))
    net.prepare_for_task(0)
    net.prune(0.5)
    net.finish_task()
    net.save(tmp_path / "net")
    assert autoeidetic.audit(tmp_path / "net").ok


def test_before_and_in_the_middle_of_a_task(tmp_path: Path) -> None:
    """What a task in training holds is not sealed; what is finished, is."""
    x = torch.randn(4, 3)
    net = autoeidetic.convert(normed(), x)
    net.save(tmp_path / "net")
    report = audit(tmp_path / "net")
    assert (report.ok, report.tasks, report.digest) == (True, (), "")
    assert "nothing to check" in str(report)
    task(net, x, 0, finish=False)
    net.save(tmp_path / "net")
    assert audit(tmp_path / "net").tasks == ()
    net.finish_task()
    task(net, x, 1, finish=False)
    net.save(tmp_path / "net")
    edit(tmp_path / "net", lambda _, tensors: tensors["heads.1.3.weight"].add_(1))
    assert verdicts(audit(tmp_path / "net")) == ["held"]
    edit(tmp_path / "net", lambda _, tensors: tensors["heads.0.3.weight"].add_(1))
    assert verdicts(audit(tmp_path / "net")) == ["changed"]


# -- values ---------------------------------------------------------------------------------------


def elements(path: Path) -> Iterator[tuple[str, int]]:
    for name, tensor in archive.read(path)[1].items():
        if name.startswith(("backbone.", "heads.")) and tensor.is_floating_point():
            yield from ((name, index) for index in range(tensor.numel()))


def changed_answers(before: EideticNet, path: Path, x: Tensor) -> list[int]:
    after = autoeidetic.load(path, normed(4))
    same = [lives.same(lives.answers(before, x, t), lives.answers(after, x, t)) for t in (0, 1)]
    return [number for number in (0, 1) if not same[number]]


@pytest.mark.slow
def test_every_single_value(tmp_path: Path) -> None:
    """What a task says tells whose a value is: the first task that says something else.

    The digest of the file is right after every change, so that only the seals tell.
    """
    net, x, saved = learned(units=4), torch.randn(32, 3), tmp_path / "net"
    net.save(saved)
    intact, found = saved.read_bytes(), {0: 0, 1: 0}
    for name, index in elements(saved):
        edit(saved, lambda _, t, n=name, i=index: t[n].reshape(-1)[i].add_(0.5))
        report = audit(saved, 4)
        moved = changed_answers(net, saved, x)
        if moved:
            assert [each.task for each in report.tampered] == moved[:1], name
        for each in report.tampered:
            assert list(each.changed) == [name]
            found[each.task] += 1
        assert report.ok == (not report.tampered)
        saved.write_bytes(intact)
    # no value that is sealed goes unseen, and none that is free is taken for one
    assert found == {each.task: each.values for each in audit(saved, 4).tasks}


def test_every_owner(saved: Path) -> None:
    owners = archive.read(saved)[1]["owners"]
    intact = saved.read_bytes()
    for index, owner in enumerate(owners.tolist()):
        for other in {-1, 0, 1} - {owner}:
            edit(saved, lambda _, t, i=index, o=other: t["owners"][i].fill_(o))
            report = audit(saved)
            named = [each.task for each in report.tasks if not each.owners]
            assert named == sorted({owner, other} - {-1})
            assert [each.task for each in report.tampered] == named
            assert "does not own the units that it owned" in str(report)
            saved.write_bytes(intact)


CHANGES = {
    "frozen value": ("backbone.0.weight", 0),
    "running statistic": ("backbone.1.running_var", 0),
    "head of the first task": ("heads.0.3.weight", 0),
    "head of the second task": ("heads.1.3.bias", 1),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("digest", ["recomputed", "left"])
def test_the_task_is_named(name: str, digest: str, saved: Path) -> None:
    tensor, number = CHANGES[name]

    def double(tensors: dict[str, Tensor]) -> None:
        tensors[tensor].mul_(2)

    if digest == "left":
        edit_without_digest(saved, double)
    else:
        edit(saved, lambda _, tensors: double(tensors))
    report = audit(saved)
    assert not report.ok
    assert bool(report.damage) == (digest == "left")
    assert number in [each.task for each in report.tampered]
    assert tensor in report.tasks[number].changed
    assert f"task {number}" in str(report).splitlines()[-1]
    assert "TAMPERED WITH" in str(report)
    assert tensor in str(report)
    if tensor.startswith("heads."):
        assert [each.task for each in report.tampered] == [number]


def test_a_later_task_that_builds_on_what_was_changed_is_not_accused(saved: Path) -> None:
    owners = archive.read(saved)[1]["owners"]
    first = learned().call_plan.plan.parameters["0.bias"].units
    mine = (owners[first] == 0).nonzero().reshape(-1)
    edit(saved, lambda _, tensors: tensors["backbone.0.bias"].index_fill_(0, mine, 3.0))
    report = audit(saved)
    assert verdicts(report) == ["changed", "outputs"]
    assert report.tasks[0].changed == {"backbone.0.bias": len(mine)}
    assert report.tasks[1].note == "its own values are as sealed; it may build on task 0"
    assert report.tasks[0].outputs.changed > 0
    assert 0 < report.tasks[0].outputs.largest < 100


def test_what_is_not_sealed_shows_in_the_outputs(tmp_path: Path) -> None:
    """A table that the model makes by itself."""
    x = torch.randn(2, 4)
    net = autoeidetic.convert(Caches(), x)
    task(net, x, 0)
    net.save(tmp_path / "net")
    assert autoeidetic.audit(tmp_path / "net", Caches()).ok
    edit(tmp_path / "net", lambda _, tensors: tensors["backbone.noise"].add_(1))
    report = autoeidetic.audit(tmp_path / "net", Caches())
    assert verdicts(report) == ["outputs"]
    assert "something that is not sealed" in report.tasks[0].note
    assert "OUTPUTS OF FINISHED TASKS DIFFER" in str(report)


class Scaled(nn.Sequential):
    """A constant that no task owns."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.register_buffer("scale", torch.rand(1))

    def forward(self, x: Tensor) -> Tensor:
        return self[2](self[1](self[0](x) * self.scale))


def test_a_constant_is_sealed_by_the_first_task(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    net = autoeidetic.convert(Scaled(), x)
    for number in range(2):
        task(net, x, number)
    net.save(tmp_path / "net")
    edit(tmp_path / "net", lambda _, tensors: tensors["backbone.scale"].add_(1))
    report = autoeidetic.audit(tmp_path / "net", Scaled())
    assert verdicts(report) == ["changed", "outputs"]
    assert report.tasks[0].changed == {"backbone.scale": 1}


# -- seals ----------------------------------------------------------------------------------------


def _first(seal: Any) -> Any:
    return seal["frozen"]["tensors"]["backbone.0.weight"]


def _output(seal: Any) -> Any:
    return seal["reference"]["outputs"][0]


SEALS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "digest": (lambda s: _first(s).update(digest="0" * 64), "changed", "is in the seal itself"),
    "number": (lambda s: _first(s).update(values=1), "changed", "is in the seal itself"),
    "tensor less": (lambda s: s["frozen"]["tensors"].popitem(), "changed", "is in the seal itself"),
    "tensor more": (
        lambda s: s["frozen"]["tensors"].update(more=dict(_first(s))),
        "changed",
        "is in the seal itself",
    ),
    "owned": (lambda s: s["frozen"].update(owned=""), "changed", "is in the seal itself"),
    "output": (lambda s: _output(s).update(digest="0" * 64), "outputs", "recorded outputs"),
    "sample": (lambda s: _output(s).update(sample="AAAA" * 8), "outputs", "recorded outputs"),
    "no sample": (lambda s: _output(s).update(sample="?"), "outputs", "recorded outputs"),
    "shape": (lambda s: _output(s).update(shape=[1]), "outputs", "recorded outputs"),
    "output type": (lambda s: _output(s).update(type="os"), "outputs", "recorded outputs"),
    "output more": (
        lambda s: s["reference"]["outputs"].append(_output(s)),
        "outputs",
        "recorded outputs",
    ),
    "inputs": (lambda s: s["reference"].update(inputs=""), "outputs", "example inputs"),
    "batch": (lambda s: s["reference"].update(batch=1), "outputs", "example inputs"),
}


@pytest.mark.parametrize("name", SEALS)
@pytest.mark.parametrize("number", [0, 1])
def test_an_edited_seal(name: str, number: int, saved: Path) -> None:
    change, verdict, note = SEALS[name]
    before = audit(saved).digest
    edit_seal(saved, number, change)
    report = audit(saved)
    assert not report.ok
    assert report.tasks[number].verdict == verdict
    assert report.tasks[1 - number].ok
    assert note in report.tasks[number].note
    assert report.digest != before


def test_a_seal_made_anew_shows_in_the_digest_of_all_seals(saved: Path) -> None:
    """Whoever can edit a file can seal it again: this is what the digest is for."""
    before = audit(saved).digest
    edit(saved, lambda _, tensors: tensors["heads.0.3.bias"].add_(1))
    net = autoeidetic.load(saved, normed())
    net.seal()
    net.save(saved)
    report = audit(saved)
    assert report.ok
    assert report.digest != before
    assert report.digest in str(report)
    assert audit(saved, digest=report.digest).noted
    report = audit(saved, digest=before)
    assert (report.ok, report.noted, report.tampered) == (False, False, ())
    assert str(report).splitlines()[-1].startswith("SEALED ANEW: ")


def test_a_digest_is_good_for_ever(tmp_path: Path) -> None:
    """Whatever is learned afterwards, the seals that it is of are there."""
    net = learned()
    net.save(tmp_path / "net")
    before = audit(tmp_path / "net").digest
    task(net, torch.randn(4, 3), 2)
    net.save(tmp_path / "later")
    report = audit(tmp_path / "later", digest=f" {before.upper()}\n")
    assert report.digest != before
    assert report.noted
    assert report.ok
    assert str(report).endswith("all that decides about an answer are those that were noted")


@pytest.mark.parametrize("digest", ["", "12", "x" * 64, 5])
def test_no_digest(digest: Any, saved: Path) -> None:
    with pytest.raises(InputError, match=r"(?s)is not a digest of seals.*64 digits"):
        audit(saved, digest=digest)


def test_the_digest_of_all_seals_stays(tmp_path: Path) -> None:
    net = learned()
    net.save(tmp_path / "net")
    before = audit(tmp_path / "net").digest
    task(net, torch.randn(4, 3), 2, finish=False)
    net.save(tmp_path / "later")
    assert audit(tmp_path / "later").digest == before


@pytest.mark.parametrize("how", ["missing", "none"])
def test_a_file_of_an_earlier_version_has_no_seals(how: str, saved: Path) -> None:
    def strip(description: Any, _: Any) -> None:
        for each in description["tasks"]:
            each.pop("seal") if how == "missing" else each.update(seal=None)

    edit(saved, strip)
    report = audit(saved)
    assert verdicts(report) == ["unsealed", "unsealed"]
    assert not report.ok
    assert report.tasks[0].values > 0
    assert "2 of 2 finished tasks cannot be checked" in str(report)
    assert "net.seal()" in str(report)
    net = autoeidetic.load(saved, normed())
    assert [each.seal for each in net.tasks] == [None, None]
    net.seal()
    net.save(saved)
    assert audit(saved).ok


# -- conversion -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_after_a_change_of_type(dtype: torch.dtype, tmp_path: Path) -> None:
    net = learned(1).to(dtype)
    net.save(tmp_path / "net")
    report = audit(tmp_path / "net")
    assert verdicts(report) == ["converted"]
    assert not report.ok
    assert f"converted to {str(dtype).removeprefix('torch.')}" in report.tasks[0].note
    assert "cannot be checked" in str(report)
    task(net, torch.randn(4, 3).to(dtype), 1)
    net.save(tmp_path / "net")
    assert verdicts(audit(tmp_path / "net")) == ["converted", "held"]
    net.seal()
    net.save(tmp_path / "net")
    assert audit(tmp_path / "net").ok
    edit(tmp_path / "net", lambda _, tensors: tensors["heads.0.3.bias"].add_(1))
    assert verdicts(audit(tmp_path / "net")) == ["changed", "held"]


def test_to_another_type_and_back(tmp_path: Path) -> None:
    net = learned(1)
    net.double().float().save(tmp_path / "net")
    assert audit(tmp_path / "net").ok  # nothing was lost
    net.half().float().save(tmp_path / "net")
    assert audit(tmp_path / "net").ok  # frozen values have not followed
    net.half().save(tmp_path / "net")
    rounded = autoeidetic.load(tmp_path / "net", normed())  # a file holds what it was given
    rounded.float().save(tmp_path / "net")
    assert verdicts(audit(tmp_path / "net")) == ["converted"]


def test_another_type_of_one_tensor_does_not_excuse_the_others(saved: Path) -> None:
    def change(_: Any, tensors: dict[str, Tensor]) -> None:
        tensors["heads.0.3.bias"] = tensors["heads.0.3.bias"].double()
        tensors["heads.0.3.weight"].add_(1)

    edit(saved, change)
    report = audit(saved)
    assert verdicts(report) == ["changed", "held"]
    assert list(report.tasks[0].changed) == ["heads.0.3.weight"]


def test_a_move_that_changes_no_type_breaks_no_seal(tmp_path: Path) -> None:
    net = learned(1)
    before = net.tasks
    assert net.to("cpu").to(memory_format=torch.channels_last).tasks == before


# -- damage ---------------------------------------------------------------------------------------


def complains(path: Path, model: nn.Module) -> bool:
    """Is something wrong, as a report or an error says, and nothing else happens?"""
    try:
        report = autoeidetic.audit(path, model)
    except CheckpointError as error:
        return bool(error.remedy)
    return bool(str(report)) and not report.ok


def test_no_flipped_bit_goes_by(saved: Path) -> None:
    intact = saved.read_bytes()
    for position in [*range(40), *range(40, len(intact), 211)]:
        damaged = bytearray(intact)
        damaged[position] ^= 1 << position % 8
        saved.write_bytes(damaged)
        assert complains(saved, normed())
    saved.write_bytes(intact)
    assert audit(saved).ok


def test_a_cut_file(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-10])
    report = audit(saved)
    assert not report.ok
    assert report.tasks == ()
    assert str(report).splitlines()[-1] == "EDITED OR DAMAGED"


def test_damage_outside_of_what_is_sealed(saved: Path) -> None:
    edit_without_digest(saved, lambda tensors: tensors["backbone.1.num_batches_tracked"].add_(1))
    report = audit(saved)
    assert verdicts(report) == ["held", "held"]
    assert not report.ok
    assert str(report).splitlines()[-1] == "EDITED OR DAMAGED, outside of what is sealed"


def test_damage_does_not_change_the_layout_in_memory(tmp_path: Path) -> None:
    model, x = ZOO["conv_bn_relu"]()
    net = autoeidetic.convert(lives.randomise(model), x).to(memory_format=torch.channels_last)
    task(net, x, 0)
    net.save(tmp_path / "net")
    before = archive.read(tmp_path / "net")[1]
    edit_without_digest(tmp_path / "net", lambda tensors: tensors["pruned"].logical_not_())
    _, tensors, damage = archive.examine(tmp_path / "net")
    assert damage is not None
    assert {n: t.stride() for n, t in tensors.items()} == {n: t.stride() for n, t in before.items()}


def test_what_no_network_has_written(saved: Path) -> None:
    edit(saved, lambda _, tensors: tensors["owners"].fill_(7))
    report = audit(saved)
    assert not report.ok
    assert report.damage == "the file was edited; the file has owners that are not finished tasks"
    assert report.digest


def test_what_is_no_saved_network(saved: Path) -> None:
    for path, fact in [(saved.parent / "none", "does not exist"), (saved.parent, "is a directory")]:
        with pytest.raises(CheckpointError, match=fact) as caught:
            audit(path)
        assert str(path) in str(caught.value)
    with pytest.raises(CheckpointError, match="does not tell how to build the model"):
        autoeidetic.audit(saved)
    with pytest.raises(CheckpointError, match="has nothing for"):
        autoeidetic.audit(saved, nn.Linear(3, 2))
    with pytest.raises(InputError, match=r"not a torch\.nn\.Module"):
        autoeidetic.audit(saved, "resnet18")  # type: ignore[arg-type]


#: In the place of anything in a description.
ODD = (None, -1, 0, 2**40, "", "x", "torch.bool", "torch.quint8", [], {}, True, 1e308, [[]])


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if above:
        yield above
    if isinstance(value, dict):
        keys = list(value)
    else:
        keys = list(range(len(value))) if isinstance(value, list) else []
    for key in keys:
        yield from places(value[key], (*above, key))


def test_odd_descriptions_are_no_surprise(tmp_path: Path) -> None:
    """With a right digest, whatever is written anywhere: a report, or an error that says why."""
    started(small, torch.randn(2, 4), "between tasks").save(tmp_path / "net")
    description, tensors = archive.read(tmp_path / "net")
    generator = random.Random(0)
    for place in places(description):
        odd = generator.choice(ODD[:3] + ODD[4:] if "classes" in place else ODD)
        changed = copy.deepcopy(description)
        holder = changed
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = odd
        archive.write(tmp_path / "net", changed, tensors)
        complains(tmp_path / "net", small())


@pytest.mark.parametrize("strides", [{"none": [1]}, {"owners": ["x"]}, {"owners": [1, 1]}, [], 3])
def test_odd_strides(strides: Any, saved: Path) -> None:
    with safe_open(saved, framework="pt") as file:
        outer = json.loads(file.metadata()["autoeidetic"])
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    content = {"network": outer["network"], "strides": strides}
    outer |= {"strides": strides, "digest": archive._digest(content, tensors)}
    save_file(tensors, saved, {"autoeidetic": archive._canonical(outer)})
    report = audit(saved)
    assert "is damaged or was edited" in report.damage
    assert verdicts(report) == ["held", "held"]


# -- reference outputs ----------------------------------------------------------------------------


#: Sums of four bytes of SHAKE-256, less their mean.
BELL = [[-179.0, -49.0, -28.0], [-22.0, 419.0, 15.0]]


def test_reference_inputs_are_the_same_everywhere() -> None:
    values = reference._bell(0, (2, 3))
    assert (values * 128).tolist() == BELL
    many = reference._bell(1, (100_000,))
    assert abs(float(many.mean())) < 0.02
    assert float(many.var()) == pytest.approx(4 / 3, rel=0.02)


class Stubborn(nn.Module):
    """Takes batches of five only; or nothing at all, once it is told so."""

    def __init__(self, refuses: bool = False) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 3)
        self.refuses = refuses

    def forward(self, x: Tensor) -> Tensor:
        if len(x) != 5 or self.refuses:
            raise ValueError("not\nthis one")
        return self.two(self.one(x).relu())


def test_a_model_that_insists_on_its_batch(tmp_path: Path) -> None:
    net = autoeidetic.convert(Stubborn(), torch.randn(5, 4))
    task(net, torch.randn(5, 4), 0)
    net.save(tmp_path / "net")
    assert sealed(tmp_path / "net", 0)["reference"]["batch"] is None
    assert autoeidetic.audit(tmp_path / "net", Stubborn()).tasks[0].outputs.same


def test_a_model_that_no_longer_answers(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise ValueError("not\nthis one")

    monkeypatch.setattr(reference, "inputs", fail)
    report = audit(saved)
    assert verdicts(report) == ["outputs", "outputs"]
    assert report.tasks[0].note == "its outputs cannot be computed any more: not this one"


def test_a_model_that_cannot_be_asked(tmp_path: Path) -> None:
    net = autoeidetic.convert(Stubborn(), torch.randn(5, 4))
    net.prepare_for_task(0)
    net.backbone.refuses = True
    net.finish_task()
    net.save(tmp_path / "net")
    report = autoeidetic.audit(tmp_path / "net", Stubborn())
    assert report.ok
    assert report.tasks[0].outputs.same is None
    assert "not recorded when it was finished (ValueError: not this one)" in report.tasks[0].note
    assert "not checked" in str(report)


def test_a_large_example_is_asked_for_few_rows(tmp_path: Path) -> None:
    net = autoeidetic.convert(normed(), torch.randn(64, 3))
    net.prepare_for_task(0)
    net.finish_task()
    net.save(tmp_path / "net")
    assert _output(sealed(tmp_path / "net", 0))["shape"] == [2, 2]
    assert audit(tmp_path / "net").ok


def test_on_another_machine(saved: Path) -> None:
    """Other bits there are no sign of a change; the note says what is different."""

    def elsewhere(seal: Any) -> None:
        seal["reference"]["environment"]["torch"] = "1.0"
        _output(seal)["digest"] = "0" * 64

    edit_seal(saved, 0, elsewhere)
    report = audit(saved)
    assert verdicts(report) == ["outputs", "held"]
    assert "only on the same machine, and here torch was '1.0'" in report.tasks[0].note
    assert "though their frozen values are as sealed" in str(report)


@pytest.mark.parametrize("device", ["xpu", "cuda NVIDIA Z9", ""])
def test_a_device_that_is_not_here(device: str, saved: Path) -> None:
    if device.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("it is here")
    edit_seal(saved, 0, lambda s: s["reference"]["environment"].update(device=device))
    report = audit(saved)
    assert report.tasks[0].verdict == "held"  # all its values are
    assert report.tasks[0].outputs.same is None
    assert "which is not here" in report.tasks[0].note


def test_as_many_threads_as_then(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, ask = [], reference.ask

    def noted(*args: Any) -> Any:
        used.append(torch.get_num_threads())
        return ask(*args)

    monkeypatch.setattr(reference, "ask", noted)
    for number, threads in enumerate(["2", "1000000"]):
        given = {"threads": threads}
        edit_seal(saved, number, lambda s, g=given: s["reference"]["environment"].update(g))
    audit(saved)
    assert used == [2, 1]
    assert torch.get_num_threads() == 1


def test_a_revisit_answers_for_itself(tmp_path: Path) -> None:
    net, x = learned(1), torch.randn(4, 3)
    net.prepare_for_task(1, revisit=0)
    lives.train(net, x, [lives.adamw(net)])
    net.finish_task()
    net.replace_task(0, by=1)
    net.save(tmp_path / "net")
    assert audit(tmp_path / "net").ok
    assert net.tasks[0].seal != net.tasks[1].seal


# -- what seals and audits leave alone ------------------------------------------------------------


class Restless(nn.Module):
    """Changes buffers in place, replaces them, caches and draws random numbers, in eval as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("sizes", torch.zeros(1), persistent=False)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.sizes = torch.full((len(x),), float(random.random() + np.random.rand()))
        self.seen.append(len(x))
        self.latest = len(x)
        noise = torch.rand(()) * 0
        return self.last(self.norm(self.first(x)).relu()) + noise


def generators() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]


def test_sealing_changes_nothing() -> None:
    x = torch.randn(6, 4)
    net = autoeidetic.convert(Restless(), x)
    task(net, x, 0)
    task(net, x, 1, finish=False)
    net.train()
    net.backbone.norm.eval()
    lives.backward(net, x)
    net.backbone.seen = [1, 2]

    def state() -> list[Any]:
        tensors = [*net.named_parameters(), *net.named_buffers()]
        grads = [None if p.grad is None else bits(p.grad) for p in net.parameters()]
        modes = [module.training for module in net.modules()]
        attributes = {n: copy.copy(v) for n, v in vars(net.backbone).items() if n != "_buffers"}
        values = [(name, id(tensor), bits(tensor)) for name, tensor in tensors]
        return [grads, modes, attributes, values, generators()]

    net.pins.impose()  # a forward in between has counted
    before = state()
    assert seals.take(net, 0) == seals.take(net, 0) == net.tasks[0].seal
    assert state() == before
    net.seal()
    assert state() == before
    assert net.training
    assert torch.is_grad_enabled()


def test_finishing_draws_no_random_number() -> None:
    net = learned(1)
    net.prepare_for_task(1)
    before = generators()
    net.finish_task()
    assert generators() == before


def test_an_audit_leaves_everything_alone(saved: Path) -> None:
    content, model = saved.read_bytes(), lives.randomise(normed()).train()
    state, before = lives.state(model), generators()
    audit_of = autoeidetic.audit(saved, model)
    assert audit_of.ok
    assert saved.read_bytes() == content
    assert sorted(saved.parent.iterdir()) == [saved]
    assert generators() == before
    assert not lives.changed(model, state)
    assert model.training
    assert type(model[0]) is nn.Linear


# -- what seals survive ---------------------------------------------------------------------------


def hostile(net: EideticNet, x: Tensor) -> None:
    """Two more tasks: large steps, weight decay, momentum of before, writes that leave no trace."""
    carried = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.99, weight_decay=0.1)
    for number in range(len(net.tasks), len(net.tasks) + 2):
        net.prepare_for_task(number, on_full="reuse")
        lives.train(net, x, [lives.adamw(net), carried])
        for parameter in net.parameters():
            parameter.data.add_(0.1)
        for buffer in net.backbone.buffers():
            buffer.data.add_(1)
        net.prune(0.3)
        net.finish_task()


def test_seals_are_the_same_after_later_tasks(tmp_path: Path) -> None:
    net = learned(1)
    before = net.tasks[0].seal
    hostile(net, torch.randn(4, 3))
    assert net.tasks[0].seal == before
    assert seals.take(net, 0) == before  # taken anew
    net.save(tmp_path / "net")
    assert audit(tmp_path / "net").ok
    assert len(audit(tmp_path / "net").tasks) == 3


def test_copies_have_the_same_seals(tmp_path: Path) -> None:
    net, x = learned(), torch.randn(4, 3)
    net.save(tmp_path / "net")
    copies = [
        copy.deepcopy(net),
        pickle.loads(pickle.dumps(net)),
        autoeidetic.load(tmp_path / "net", normed()),
    ]
    for other in copies:
        assert other.tasks == net.tasks
        assert [seals.take(other, t) for t in (0, 1)] == [each.seal for each in net.tasks]
        hostile(other, x)
        assert [seals.take(other, t) for t in (0, 1)] == [each.seal for each in net.tasks]
    assert everything(copies[0], x).keys() == everything(copies[2], x).keys()


# -- the report -----------------------------------------------------------------------------------


def strict(text: str | bytes) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_json_is_strict(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(saved, lambda _, tensors: tensors["heads.0.3.weight"].fill_(float("inf")))
    report = audit(saved)
    assert report.tasks[0].outputs.largest == float("inf")
    assert "by up to inf" in str(report)
    assert (
        commands.main(["verify", str(saved), "--model", "checkpoint.test_audit:normed", "--json"])
        == 1
    )
    printed = strict(capsys.readouterr().out)
    assert printed == strict(to_json(report.to_dict()))
    assert printed["tasks"][0]["outputs"]["largest"] is None
    assert [each["ok"] for each in printed["tasks"]] == [False, True]
    assert printed["ok"] is False
    assert printed["tasks"][0]["changed"] == {"heads.0.3.weight": 12}


def test_a_digest_on_the_command_line(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["verify", str(saved), "--model", "checkpoint.test_audit:normed", "--digest"]
    assert commands.main([*typed, audit(saved).digest]) == 0
    assert "those that were noted" in capsys.readouterr().out
    assert commands.main([*typed, "0" * 64]) == 1
    assert "SEALED ANEW" in capsys.readouterr().out
    assert commands.main([*typed, "0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_names_of_an_attacker_stay_on_their_line(saved: Path) -> None:
    def change(description: Any, _: Any) -> None:
        description["tasks"][0]["name"] = "all\nis \x1b[2J well"
        tensors = description["tasks"][0]["seal"]["frozen"]["tensors"]
        tensors["a\x1b[1A\nb"] = dict(tensors["backbone.0.weight"])

    edit(saved, change)
    report = audit(saved)
    assert report.tasks[0].verdict == "changed"
    for text in (str(report), report._repr_html_()):
        assert "\x1b" not in text
        assert r"all\nis \x1b[2J well" in text
        assert r"a\x1b[1A\nb" in text


def test_a_long_list_is_cut(saved: Path) -> None:
    def change(_: Any, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if name.startswith(("backbone.", "heads.")):
                tensor.add_(1)

    edit(saved, change)
    report = audit(saved)
    assert len(report.tasks[0].changed) > 5
    assert f"and {len(report.tasks[0].changed) - 5} more" in str(report)
    assert "TAMPERED WITH: task 0, task 1" in str(report)


# -- what decides about an answer besides values --------------------------------------------------


def build_router(net: EideticNet) -> None:
    data = [[torch.randn(8, 3) + 5 * number] for number in range(2)]
    net.train_router(data, by="learned", epochs=2, progress=False)


@pytest.fixture
def replaced(tmp_path: Path) -> Path:
    """Task 1 revisits task 0, and may answer in its place; there is a router."""
    net, x = learned(1), torch.randn(4, 3)
    net.prepare_for_task(1, revisit=0, name="again")
    lives.train(net, x, [lives.adamw(net)])
    net.finish_task()
    task(net, x, 2)
    build_router(net)
    net.save(tmp_path / "net")
    return tmp_path / "net"


def _router_tensor(description: Any, tensors: dict[str, Tensor]) -> None:
    name = next(n for n, t in tensors.items() if n.startswith("router.") and t.numel() > 1)
    tensors[name].add_(1)


#: Edits after which a file can be loaded.
DECIDES: dict[str, Callable[[Any, dict[str, Tensor]], Any]] = {
    "answered_by": lambda d, _: d["tasks"][0].update(answered_by=1),
    "name": lambda d, _: d["tasks"][0].update(name="task 2"),
    "router tensor": _router_tensor,
    "router gone": lambda d, t: (d.update(router=None), _without_router(t)),
    "forward_transfer": lambda d, _: d["options"].update(forward_transfer=False),
    "recycle": lambda d, _: d["options"].update(recycle="keep"),
    "example": lambda d, _: d["example"][0]["tuple"][0].update(shape=[3, 3]),
    "recipe": lambda d, _: d.update(recipe={"library": "timm", "name": "x", "arguments": {}}),
}


def _without_router(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if name.startswith("router.")]:
        del tensors[name]


@pytest.mark.parametrize("name", DECIDES)
def test_a_digest_covers_what_decides_about_an_answer(name: str, replaced: Path) -> None:
    digest = audit(replaced).digest
    assert audit(replaced, digest=digest).ok
    edit(replaced, DECIDES[name])
    report = audit(replaced, digest=digest)
    assert not report.ok, str(report)
    assert report.digest != digest
    assert report.answers is False
    assert report.noted  # the seals are those of then


def test_other_edits_of_the_record_do_no_harm(replaced: Path) -> None:
    """The mode, versions, and what is trained are not sealed."""
    digest = audit(replaced).digest
    net = autoeidetic.load(replaced, normed())
    net.train()
    task(net, torch.randn(4, 3), 3)
    net.save(replaced)
    report = audit(replaced, digest=digest)
    assert report.ok, str(report)
    assert (report.noted, report.answers) == (True, True)


def test_another_task_that_answers_is_told(replaced: Path) -> None:
    digest = audit(replaced).digest
    edit(replaced, DECIDES["answered_by"])
    report = audit(replaced)
    assert report.tasks[0].answered_by == "again"
    assert "task 0: again answers in its place (net.replace_task)" in str(report)
    assert "router: 'learned', for 2 tasks" in str(report)
    text = str(audit(replaced, digest=digest))
    assert "ANOTHER ANSWER IS GIVEN: the seals are those that were noted, but which task" in text


def test_a_router_that_was_trained_anew(replaced: Path) -> None:
    """It may be right or wrong: whoever kept the digest is told, and notes the new one."""
    digest = audit(replaced).digest
    net = autoeidetic.load(replaced, normed())
    net.train_router(by="entropy", progress=False)
    net.save(replaced)
    report = audit(replaced, digest=digest)
    assert (report.ok, report.noted, report.answers) == (False, True, False)
    assert "note the new digest" in str(report)
    assert audit(replaced, digest=report.digest).ok


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("name", "task 2: its name is 'task 2', and was 'task 0' when it was sealed"),
        ("example", "its network's example inputs (their digest) is '"),
    ],
)
def test_terms_are_sealed(name: str, sentence: str, replaced: Path) -> None:
    """Without any digest from elsewhere."""
    edit(replaced, DECIDES[name])
    report = audit(replaced)
    assert report.tasks[0].verdict == "changed"
    assert sentence in str(report)
    assert "TAMPERED WITH" in str(report)
    assert strict(to_json(report.to_dict()))["tasks"][0]["terms"]


def test_options_are_sealed(saved: Path) -> None:
    edit(saved, DECIDES["forward_transfer"])
    report = audit(saved)
    assert verdicts(report) == ["changed", "changed"]
    sentence = "its network's forward_transfer is 'False', and was 'True' when it was sealed"
    assert f"task 1: {sentence}" in str(report)


def _earlier(description: Any, _: Any = None) -> None:
    for each in description["tasks"]:
        if each["seal"] is not None:
            del each["seal"]["terms"]


def test_seals_of_an_earlier_version(replaced: Path) -> None:
    """They hold, the report says what they lack, and a digest of that time is good."""
    edit(replaced, _earlier)
    description, _ = archive.read(replaced)
    seals = json.dumps([each["seal"] for each in description["tasks"]], sort_keys=True)
    then = blake2b(seals.encode(), digest_size=32).hexdigest()
    report = audit(replaced, digest=then)
    assert report.ok
    assert (report.noted, report.answers) == (True, None)
    assert report.digest.startswith(then)
    assert "its seal is that of an earlier version, which did not cover its name" in str(report)
    assert "the digest is that of an earlier version, which does not tell" in str(report)
    net = autoeidetic.load(replaced, normed())
    net.save(replaced)
    assert audit(replaced, digest=then).ok  # saving again adds nothing to them
    digest = audit(replaced).digest
    edit(replaced, DECIDES["name"])
    assert audit(replaced, digest=digest).answers is False
    net.seal()
    net.save(replaced)
    assert "earlier version" not in str(audit(replaced))


class Flagged(nn.Module):
    """What it computes depends on plain values and integers of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, rows: Tensor, scale: float = 1.0) -> Tensor:
        return self.two(self.one(x[rows]).relu() * scale)


@pytest.mark.parametrize("what", ["flag", "integers"])
def test_examples_are_sealed_by_value(what: str, tmp_path: Path) -> None:
    example = {"x": torch.randn(3, 4), "rows": torch.tensor([0, 2]), "scale": 2.0}
    net = autoeidetic.convert(Flagged(), example)
    net.prepare_for_task(0)
    net.finish_task()
    net.save(tmp_path / "net")
    assert autoeidetic.audit(tmp_path / "net", Flagged()).ok

    def change(description: Any, tensors: dict[str, Tensor]) -> None:
        if what == "flag":
            description["example"][1]["dict"][2][1] = 3.0
        else:
            tensors["example.0"][0] = 1

    edit(tmp_path / "net", change)
    report = autoeidetic.audit(tmp_path / "net", Flagged())
    assert list(report.tasks[0].terms) == ["network's example inputs (their digest)"]
    assert not report.ok
