"""Benchmarks of autoeidetic: coverage of models, speed, memory, and how well tasks are learned."""

from pathlib import Path

RESULTS = Path(__file__).parent / "results"
