"""A user's program: three tasks of digits. It is the same for one process and for several.

python torchrun_script.py DIRECTORY
torchrun --nproc-per-node 2 torchrun_script.py DIRECTORY
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from sklearn import datasets
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autoeidetic


def main(directory: Path) -> None:
    torch.manual_seed(int(os.environ.get("RANK", 0)))  # another one in every process
    digits = datasets.load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    y = torch.tensor(digits.target)

    model = nn.Sequential(
        nn.Linear(64, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 40), nn.LayerNorm(40),
        nn.ReLU(), nn.Linear(40, 2),
    )  # fmt: skip
    net = autoeidetic.convert(model, x[:4])
    said, loaders = {}, []
    for task in range(3):
        rows = (y // 2 == task).nonzero()[:200, 0]
        loader = DataLoader(TensorDataset(x[rows], y[rows] % 2), batch_size=20, shuffle=True)
        net.prepare_for_task(task, num_classes=2)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.5)
        history = net.train_task(
            loader,
            optimizer=optimizer,
            pruning="taylor",
            step=0.2,
            tolerance=0.02,
            max_epochs=5,
            recovery_epochs=1,
            checkpoint=directory,
            prune=task < 2,
        )
        lag = statistics_lag(net, x[rows])
        net.finish_task()
        loaders.append(loader)
        with torch.no_grad():
            said[task] = net.eval()(x, task=task)

    with torch.no_grad():
        unmoved = all(torch.equal(net(x, task=task), before) for task, before in said.items())
    net.train_router(loaders)
    known = y < 6
    found = net.predict(x[known]).task
    result = {
        "values": dict(net.state_dict()),
        "owners": torch.from_numpy(net.owners.task),
        "unmoved": unmoved and net.verify(x).ok,
        "accuracy": history.accuracy,
        "lag": lag,
        "routed": float((found == y[known] // 2).float().mean()),
    }
    torch.save(result, directory / f"rank-{os.environ.get('RANK', 'alone')}.pt")


def statistics_lag(net: autoeidetic.EideticNet, x: torch.Tensor) -> float:
    """How far free running means are from those of all data, of which a process has its part."""
    layer, norm = net.backbone[0], net.backbone[1]  # type: ignore[index]
    free = net.free.elements("1.running_mean")
    with torch.no_grad():
        return float((norm.running_mean - layer(x).mean(0))[free].abs().max())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
