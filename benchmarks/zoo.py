"""Convert many models: ``autoeidetic benchmark`` with its results in benchmarks/results/.

    python benchmarks/zoo.py --families --compare --verify      # smallest of each timm family
    python benchmarks/zoo.py --all --only analyze --workers 2   # every timm model
    python benchmarks/zoo.py --torchvision --transformers --verify

README.md in this directory describes the measurements.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from autoeidetic.commands.benchmark.command import main
from benchmarks import RESULTS

if __name__ == "__main__":
    raise SystemExit(main("python benchmarks/zoo.py", RESULTS))
