"""Sizes of inputs: which may vary, and one graph for all of them."""

from .merging import SizeProblem, Variant, generalise
from .variations import Variation, variations

__all__ = ["SizeProblem", "Variant", "Variation", "generalise", "variations"]
