"""Two tasks trained through Accelerate. Task 0 says the same, bit for bit, after task 1."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autoeidetic

set_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
x = torch.randn(256, 8)
loaders = [
    DataLoader(TensorDataset(x, (x[:, task] > 0).long()), batch_size=32, shuffle=True)
    for task in range(2)
]
net = autoeidetic.convert(
    nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 2)), x
)


def fit(net: autoeidetic.EideticNet, loader: DataLoader, epochs: int) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    model.train()
    for _ in range(epochs):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    accelerator.unwrap_model(model, keep_fp32_wrapper=False)  # net.forward as it was
    accelerator.free_memory()  # the next task has a head of its own: prepare again


said = {}
for task, loader in enumerate(loaders):
    net.prepare_for_task(task, num_classes=2)
    fit(net, loader, epochs=8)
    net.prune(0.5)
    fit(net, loader, epochs=4)  # recover
    net.finish_task()
    said[task] = net.eval()(x, task=task)

right = (net(x, task=1).argmax(1) == (x[:, 1] > 0)).float().mean()
assert right > 0.9
assert torch.equal(net(x, task=0), said[0])
assert net.verify(x).ok
print(f"task 1 is right in {right:.0%}, and no bit of task 0 has moved")
