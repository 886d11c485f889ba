"""Two tasks trained by the Trainer of transformers. Task 0 stays the same, bit for bit."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import autoeidetic


class TaskTrainer(Trainer):
    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **_: Any
    ) -> Any:
        labels = inputs.pop("labels")  # the task's classes are not those of the model's config
        output = model(**inputs)
        loss = nn.functional.cross_entropy(output.logits, labels)
        return (loss, output) if return_outputs else loss


def fit(net: autoeidetic.EideticNet, samples: list[dict[str, Tensor]], epochs: int) -> None:
    settings = TrainingArguments(
        output_dir="trainer", num_train_epochs=epochs, per_device_train_batch_size=32,
        learning_rate=0.003, weight_decay=0.1, use_cpu=True, report_to="none",
        remove_unused_columns=False,  # Trainer would look for the names in net.forward
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    TaskTrainer(net, settings, train_dataset=samples).train()


torch.manual_seed(0)
config = BertConfig(
    vocab_size=20, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
    intermediate_size=64, max_position_embeddings=8,
)  # fmt: skip
words = torch.randint(20, (256, 6))
net = autoeidetic.convert(BertForSequenceClassification(config), {"input_ids": words[:2]})

said = {}
for task in range(2):
    labels = (words[:, task] < 10).long()  # is it one of the first ten words?
    samples = [{"input_ids": w, "labels": y} for w, y in zip(words, labels, strict=True)]
    net.prepare_for_task(task, num_classes=2)
    fit(net, samples, epochs=15)
    net.prune(0.5)
    fit(net, samples, epochs=5)  # recover
    net.finish_task()
    said[task] = net.eval()(input_ids=words, task=task).logits

right = (net(input_ids=words, task=1).logits.argmax(1) == labels).float().mean()
assert right > 0.9
assert torch.equal(net(input_ids=words, task=0).logits, said[0])
assert net.verify(input_ids=words).ok
print(f"task 1 is right in {right:.0%}, and no bit of task 0 has moved")
