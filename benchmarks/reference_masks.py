"""The reference implementation's way of masking, written from the paper's description.

Every weight element has an integer: the task that its unit is assigned to. Before each forward pass
a mask as large as the weight is computed from these integers and multiplied in, as
``torch.nn.utils.prune`` does with its masks; after each backward pass the gradient is multiplied
by another mask. Batch norms keep the statistics of frozen channels. It supports linear layers,
convolutions and batch norms; the paper has nothing for other layers, so a LayerNorm is unchanged
and costs nothing here. Its users declare which layer feeds which; here the analysis provides that.

A baseline for speed and memory (one byte for each assignment): nothing is guaranteed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autoeidetic

LATER = 255  # assigned to no task yet


class ReferenceNet(nn.Module):
    """A model whose weights are masked in every forward pass; modifies the model in place."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        super().__init__()
        deps = autoeidetic.analyze(model, x)
        self.task = 0
        self.levels = torch.zeros(deps.plan.units + 1, dtype=torch.uint8)
        self.groups = [torch.tensor(group.units) for group in deps.groups]
        heads = {head.layer for head in deps.heads}
        self.layers = [
            MaskedWeight(self, module, deps.plan.parameters[f"{path}.weight"])
            for path, module in model.named_modules()
            if isinstance(module, (nn.Linear, nn.Conv2d)) and path not in heads
        ]
        self.norms = [
            MaskedNorm(self, module, deps.plan.parameters[f"{path}.weight"].units)
            for path, module in model.named_modules()
            if isinstance(module, nn.BatchNorm2d)
        ]
        self.body = model

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)

    @torch.no_grad()
    def prune(self, fraction: float) -> None:
        """Give up the units with the smallest weights, the same share of every group."""
        scores = torch.zeros(len(self.levels))
        for layer in self.layers:
            scores.index_add_(0, layer.rows, layer.module.weight_orig.flatten(1).square().sum(1))
        for units in self.groups:
            used = units[self.levels[units] == self.task]
            lowest = scores[used].argsort()[: int(fraction * len(used))]
            self.levels[used[lowest]] = LATER
        self._assign()

    def finish_task(self) -> None:
        """Freeze everything that is assigned to the task."""
        self.task += 1

    @torch.no_grad()
    def prepare_for_task(self) -> None:
        """Assign all free units, with new random values, to the next task."""
        for layer in self.layers:
            weight, assignment = layer.module.weight_orig, layer.module.weight_assignment
            weight.copy_(torch.where(assignment == LATER, 0.02 * torch.randn_like(weight), weight))
        self.levels[self.levels == LATER] = self.task
        self._assign()

    def _assign(self) -> None:
        for layer in self.layers:
            layer.assign(self.levels)


class MaskedWeight:
    """One layer: ``weight_orig`` is trained, ``weight`` is computed from it before each forward."""

    def __init__(self, net: ReferenceNet, module: Any, plan: Any) -> None:
        self.net, self.module = net, module
        first = (slice(None), *[0] * (plan.units.dim() - 2))
        self.rows = plan.units[:, 0][first].clone()
        self.columns = torch.zeros(plan.units.shape[1], dtype=torch.int64)
        if plan.reads:  # otherwise the layer reads the model's input
            self.columns = plan.reads[0].columns[0][first].clone()
        self.readable = torch.zeros(len(self.columns), dtype=torch.uint8)
        weight = module.weight
        del module.weight
        module.weight_orig = weight
        module.register_buffer("weight_assignment", torch.zeros(weight.shape, dtype=torch.uint8))
        module.weight = weight.detach().clone()
        module.register_forward_pre_hook(self.mask)
        weight.register_hook(lambda gradient: gradient * (module.weight_assignment == net.task))

    def assign(self, levels: Tensor) -> None:
        assignment = self.module.weight_assignment
        assignment.copy_(self._along(levels[self.rows], 0))
        self.readable = levels[self.columns]

    def mask(self, module: Any, _: Any) -> None:
        assignment = module.weight_assignment
        seen = (assignment <= self.net.task) & (self._along(self.readable, 1) <= assignment)
        module.weight = module.weight_orig * seen.to(module.weight_orig.dtype)

    def _along(self, vector: Tensor, dim: int) -> Tensor:
        shape = [1] * self.module.weight_orig.dim()
        shape[dim] = -1
        return vector.view(shape)


class MaskedNorm:
    """A batch norm whose frozen channels use and keep their running statistics."""

    def __init__(self, net: ReferenceNet, module: nn.BatchNorm2d, owner: Tensor) -> None:
        self.net, self.module, self.rows = net, module, owner
        self.stock = module.forward
        module.forward = self.forward  # type: ignore[method-assign]
        for parameter in (module.weight, module.bias):
            parameter.register_hook(lambda gradient: gradient * ~self.frozen())

    def frozen(self) -> Tensor:
        return self.net.levels[self.rows] < self.net.task

    def forward(self, x: Tensor) -> Tensor:
        module, frozen = self.module, self.frozen()
        if not module.training or not frozen.any():
            return self.stock(x)
        mean, var = module.running_mean, module.running_var
        assert mean is not None
        assert var is not None
        kept, moved = (mean.clone(), var.clone()), (mean.clone(), var.clone())
        affine = module.weight, module.bias
        fresh = F.batch_norm(x, *moved, *affine, True, module.momentum or 0.1, module.eps)
        old = F.batch_norm(x, *kept, *affine, eps=module.eps)
        mean.copy_(torch.where(frozen, kept[0], moved[0]))
        var.copy_(torch.where(frozen, kept[1], moved[1]))
        return torch.where(frozen[:, None, None], old, fresh)
