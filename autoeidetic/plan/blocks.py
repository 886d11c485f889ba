"""Blocks: the units that pass through the same group of a grouped convolution.

    weight (8, 4, 3, 3), groups=2      rows 0 to 3 read inputs 0 to 3, rows 4 to 7 inputs 4 to 7

    block of inputs       1 1 1 1 2 2 2 2
    block of outputs      1 1 1 1 2 2 2 2

Pruning takes as many units of each block: a convolution has groups of one size, so a program must
fill up the smaller ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from ..couple.tables import ParameterUnits, Read

Array = np.ndarray


def blocks_of(parameters: Iterable[ParameterUnits], units: int) -> Array:
    """The number of each unit's block, counted from 1 over all layers; 0 for units without one.

    A unit of several grouped convolutions has the block of the first.
    """
    found = np.zeros(units + 1, np.int32)
    for read in (read for each in parameters for read in each.reads):
        if not _is_grouped(read):
            continue
        columns, rows = (_first_two(each) for each in (read.columns, read.rows))
        labels = _components(columns, rows + units + 1, 2 * units + 2)
        for members, at in ((np.unique(columns), 0), (np.unique(rows), units + 1)):
            _, numbers, sizes = np.unique(
                labels[members + at], return_inverse=True, return_counts=True
            )
            members = members.astype(int)
            divided = len(sizes) > 1 and sizes.max() > 1 and (members > 0).all()
            if divided and not found[members].any():
                found[members] = numbers + 1 + found.max()
    return found


def _components(inputs: Array, outputs: Array, size: int) -> Array:
    """A label for each of ``size`` nodes: units as inputs, then units as outputs.

    An element of the weight is an edge, so that a group of the convolution is a component.
    """
    from scipy.sparse import coo_matrix  # it takes long to import
    from scipy.sparse.csgraph import connected_components

    edges = coo_matrix((np.ones(inputs.size, bool), (inputs, outputs)), shape=(size, size))
    return connected_components(edges, directed=False)[1]


def _is_grouped(read: Read) -> bool:
    """Do different rows of a weight read different columns?"""
    # A dense layer stores one vector of columns and one of rows: strides of 0 (couple/tables.py).
    return read.columns.dim() > 2 and any(
        0 not in each.stride()[:2] and min(each.shape[:2]) > 1 for each in (read.columns, read.rows)
    )


def _first_two(units: Tensor) -> Array:
    """The units along the dimensions of rows and columns, as one vector."""
    while units.dim() > 2:
        units = units.select(-1, 0)
    return units.numpy().reshape(-1)
