"""Two tasks trained by Lightning. Task 0 says the same, bit for bit, after task 1."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autoeidetic


class Learner(lightning.LightningModule):
    def __init__(self, net: autoeidetic.EideticNet) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.net.parameters(), lr=0.01, weight_decay=0.1)


def fit(net: autoeidetic.EideticNet, loader: DataLoader, epochs: int) -> None:
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", gradient_clip_val=1.0, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    net.train()  # Lightning leaves the mode as it is
    trainer.fit(Learner(net), loader)


lightning.seed_everything(0)
x = torch.randn(256, 8)
loaders = [
    DataLoader(TensorDataset(x, (x[:, task] > 0).long()), batch_size=32, shuffle=True)
    for task in range(2)
]
net = autoeidetic.convert(
    nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 2)), x
)
said = {}
for task, loader in enumerate(loaders):
    net.prepare_for_task(task, num_classes=2)
    fit(net, loader, epochs=5)  # a trainer and an optimizer for each task
    net.prune(0.5)
    fit(net, loader, epochs=2)  # recover
    net.finish_task()
    said[task] = net.eval()(x, task=task)

right = (net(x, task=1).argmax(1) == (x[:, 1] > 0)).float().mean()
assert right > 0.9
assert torch.equal(net(x, task=0), said[0])
assert net.verify(x).ok
print(f"task 1 is right in {right:.0%}, and no bit of task 0 has moved")
