"""Measurements: how fast, how large, how well tasks are learned."""

from pathlib import Path

RESULTS = Path(__file__).parent / "results"
