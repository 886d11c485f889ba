"""Convert whole zoos of models: ``autoeidetic benchmark``, with its results kept here.

    python benchmarks/zoo.py --families --compare --verify      # the smallest of each family
    python benchmarks/zoo.py --all --only analyze --workers 2   # every name that timm has
    python benchmarks/zoo.py --torchvision --transformers --verify

See README.md in this directory for what is measured.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from autoeidetic.commands.benchmark.command import main
from benchmarks import RESULTS

if __name__ == "__main__":
    raise SystemExit(main("python benchmarks/zoo.py", RESULTS))
