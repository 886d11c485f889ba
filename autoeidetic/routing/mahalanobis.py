"""Mahalanobis: the task whose training data is nearest, measured by the data's own spread."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError
from .base import Examples, Router, Settings, router
from .calibration import calibrate
from .features import View

#: The least shrinkage: keeps the covariance invertible when a feature never varies.
_LEAST = 1e-8


@router("mahalanobis")
class Mahalanobis(Router):
    """Distance to the nearest class mean of a task, by a covariance that its classes share.

    Each task has its own statistics, over the features that it may see, so a later task changes
    none of them. Distances grow with the number of features, so they are divided by their mean over
    the task's own data. The nearest task wins; one scale for all tasks turns distances into
    probabilities.

    Args:
        shrinkage: the share of the covariance, 0 to 1, that is replaced by the same variance for
            all features; None takes the best for Gaussian data (oracle approximating shrinkage).
    """

    layout = {
        "means_{task}": (torch.float64, ("classes_{task}", "seen_{task}")),
        "whitening_{task}": (torch.float64, ("seen_{task}", "seen_{task}")),
        "scale": (torch.float64, ()),
    }
    scale: Tensor

    def __init__(self, shrinkage: float | None = None) -> None:
        super().__init__()
        self.shrinkage = shrinkage
        if shrinkage is not None and not 0 <= shrinkage <= 1:
            raise InputError(
                f"shrinkage={shrinkage!r} is not a number from 0 to 1",
                remedy="pass None, or a number from 0 to 1",
            )

    def fit(
        self, examples: Sequence[Examples], view: View, settings: Settings
    ) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for task, (each, columns) in enumerate(zip(examples, view.columns, strict=True)):
            if not len(columns):
                raise InputError(f"task {task} sees no features", remedy='use by="learned"')
            # rows and residuals: [inputs, seen]; means: [classes, seen]; factor: [seen, seen].
            rows = each.rows[:, columns].double()
            means, residuals = _classes(rows, each.labels)
            factor = _whitening(residuals, self.shrinkage)
            # Mean squared distance of the task's own data to its class means; after the division it
            # is 1 for every task.
            usual = (residuals @ factor.T).square().sum(1).mean()
            if usual > 0:
                factor = factor / usual.sqrt()
            # Means are stored whitened, so a distance is one product and one cdist.
            tensors[f"whitening_{task}"] = factor
            tensors[f"means_{task}"] = means @ factor.T
        rows = torch.cat([each.rows for each in examples])
        tasks = torch.cat([torch.full((len(e.rows),), t) for t, e in enumerate(examples)])
        distances = _distances(rows, tensors, view)
        tensors["scale"] = calibrate(-distances, tasks, each=False)[0][0]
        return {name: tensor.to(settings.device) for name, tensor in tensors.items()}

    def scores(self, rows: Tensor, view: View) -> Tensor:
        tensors = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        return -_distances(rows, tensors, view) * self.scale


def _distances(rows: Tensor, tensors: dict[str, Tensor], view: View) -> Tensor:
    """Squared distances to the nearest mean of each task, ``[inputs, tasks]``."""
    found = []
    for task, columns in enumerate(view.columns):
        mine = rows.index_select(1, columns.to(rows.device)).double()
        white = mine @ tensors[f"whitening_{task}"].T
        # Not by a matrix product, which would cancel the digits of small distances.
        exact = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(white, tensors[f"means_{task}"], compute_mode=exact)
        found.append(distance.amin(1).square())
    return torch.stack(found, 1)


def _classes(rows: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """The mean of every class, and each row minus the mean of its class."""
    if labels is None:
        labels = torch.zeros(len(rows), dtype=torch.int64)
    # number: the position of each label among those present; labels may have gaps.
    present, number = labels.unique(return_inverse=True)
    means = torch.zeros(len(present), rows.shape[1], dtype=rows.dtype)
    means.index_add_(0, number, rows)
    means /= torch.bincount(number, minlength=len(present)).unsqueeze(1)
    return means, rows - means[number]


def _whitening(residuals: Tensor, shrinkage: float | None) -> Tensor:
    """The inverse Cholesky factor of the shrunk covariance: maps it to the identity."""
    # S = (1 - s) C + s trace(C)/n I = L L^T. The result is L^-1, so |L^-1 x|^2 = x^T S^-1 x.
    number, size = residuals.shape
    covariance = residuals.T @ residuals / number
    trace, squares = float(covariance.trace()), float(covariance.square().sum())
    if trace <= 0:
        return torch.eye(size, dtype=residuals.dtype)
    if shrinkage is None:
        shrinkage = _shrinkage(number, size, trace, squares)
    shrinkage = max(shrinkage, _LEAST)
    covariance = covariance * (1 - shrinkage)
    covariance.diagonal().add_(shrinkage * trace / size)
    factor = torch.linalg.cholesky(covariance)
    identity = torch.eye(size, dtype=residuals.dtype)
    return torch.linalg.solve_triangular(factor, identity, upper=False)


def _shrinkage(number: int, size: int, trace: float, squares: float) -> float:
    """Oracle approximating shrinkage (Chen, Wiesel, Eldar, Hero 2010), as in scikit-learn."""
    above = squares + trace**2
    below = (number + 1) * (squares - trace**2 / size)
    return 1.0 if below <= 0 else min(1.0, above / below)
