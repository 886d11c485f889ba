"""How the files of this folder were made, with version 0.1.0: python tests/saved_by_0_1/make.py

Later versions must load them and answer with the same bits. Do not make them anew: files from
before are the point.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import autoeidetic

HERE = Path(__file__).parent
TASKS = 3
ROUTER = {"mlp": "learned", "vit": "mahalanobis"}
SETTINGS = {"max_epochs": 4, "step": 0.25, "most": 0.5, "tolerance": 1.0, "progress": False}


def mlp() -> nn.Module:
    """An MLP with batch norms."""
    return nn.Sequential(
        nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(),
        nn.Linear(24, 24), nn.BatchNorm1d(24), nn.ReLU(),
        nn.Linear(24, 3),
    )  # fmt: skip


def data(kind: str, task: int) -> tuple[Tensor, Tensor]:
    """Inputs of a task, and labels that can be learned."""
    random = torch.Generator().manual_seed(task)
    shape = (48, 8) if kind == "mlp" else (6, 3, 160, 160)
    inputs = torch.randn(shape, generator=random) + task
    return inputs, (inputs.flatten(1)[:, task] > task).long()


def learn(net: autoeidetic.EideticNet, kind: str, task: int) -> None:
    """One task, quickly."""
    net.prepare_for_task(task, num_classes=2)
    net.train_task([data(kind, task)], **SETTINGS)
    net.finish_task()


def last_task(net: autoeidetic.EideticNet, checkpoint: Path, on_epoch: object = None) -> None:
    """The task in the middle of which a state was stored."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    net.train_task(
        [data("mlp", TASKS)], optimizer=optimizer, checkpoint=checkpoint, on_epoch=on_epoch,
        **SETTINGS,
    )  # fmt: skip


def answers(net: autoeidetic.EideticNet, kind: str) -> dict[str, Tensor]:
    """What every finished task and the router answer."""
    inputs = torch.cat([data(kind, task)[0][:4] for task in range(TASKS)])
    net.eval()
    with torch.no_grad():
        found = {f"task{task.index}": net(inputs, task=task.index) for task in net.tasks}
    if net.router is not None:
        prediction = net.predict(inputs)
        found |= {"task": prediction.task, "label": prediction.label, "scores": prediction.scores}
    return found


class StopError(Exception):
    """The program ends here."""


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    models = {"mlp": mlp(), "vit": timm.create_model("test_vit")}
    known: dict[str, Tensor] = {}
    for kind, model in models.items():
        net = autoeidetic.convert(model, data(kind, 0)[0])
        for task in range(TASKS):
            learn(net, kind, task)
        net.train_router([[data(kind, task)] for task in range(TASKS)], by=ROUTER[kind])
        net.save(HERE / f"{kind}.safetensors")
        known |= {f"{kind}.{name}": value for name, value in answers(net, kind).items()}

    net = autoeidetic.load(HERE / "mlp.safetensors", model=mlp())
    net.prepare_for_task(TASKS, num_classes=2)
    net.save(HERE / "training.safetensors")

    def stop(epoch: autoeidetic.Epoch) -> None:
        if epoch.phase == "prune":
            raise StopError

    with suppress(StopError):
        last_task(net, HERE / "training", stop)
    net = autoeidetic.load(HERE / "training.safetensors", model=mlp())
    elsewhere = HERE / "elsewhere"
    last_task(net, elsewhere)
    for file in elsewhere.iterdir():
        file.unlink()
    elsewhere.rmdir()
    net.finish_task()
    net.router = None
    known |= {f"training.{name}": value for name, value in answers(net, "mlp").items()}
    values = {name: value.contiguous() for name, value in known.items()}
    save_file(values, HERE / "answers.safetensors")
    environment = net.tasks[-1].seal.reference.environment
    (HERE / "environment.json").write_text(json.dumps(environment, indent=2) + "\n")


if __name__ == "__main__":
    main()
