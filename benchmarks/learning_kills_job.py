"""The job that is killed: a small convolutional network learns three tasks of digits.

python benchmarks/learning_kills_job.py DIRECTORY
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from sklearn import datasets
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autoeidetic


def digest(tensor: torch.Tensor) -> str:
    return hashlib.blake2b(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


directory = Path(sys.argv[1])
torch.manual_seed(0)
digits = datasets.load_digits()
x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
y = torch.tensor(digits.target)
model = nn.Sequential(
    nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(24, 2),
)  # fmt: skip
net = autoeidetic.convert(model, x[:2])
seen = directory / "answers.json"
answers = json.loads(seen.read_text()) if seen.exists() else {}
moved, epochs = [], []
for task in range(3):
    rows = (y // 2 == task).nonzero()[:, 0]
    loader = DataLoader(TensorDataset(x[rows], y[rows] % 2), batch_size=32, shuffle=True)
    net.prepare_for_task(task, num_classes=2)
    history = net.train_task(
        loader,
        optimizer=torch.optim.AdamW(net.parameters(), lr=0.01),
        checkpoint=directory,
        pruning="taylor",
        step=0.1,
        tolerance=0.01,
        max_epochs=40,
        patience=40,
        recovery_epochs=2,
        progress=False,
    )
    net.finish_task()
    epochs += [epoch.number for epoch in history.epochs]
    with torch.no_grad():
        net.eval()
        for old in range(task + 1):
            now = digest(net(x, task=old))
            if answers.setdefault(str(old), now) != now:
                moved.append(old)
    temporary = seen.with_suffix(".tmp")
    temporary.write_text(json.dumps(answers))
    temporary.replace(seen)
state = {name: digest(value) for name, value in net.state_dict().items()}
result = {"state": state, "answers": answers, "moved": moved, "epochs": epochs}
(directory / "result.json").write_text(json.dumps(result))
