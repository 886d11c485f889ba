"""Demo: a stock network learns five tasks beside one that is fine-tuned, and a page tells of it.

``data`` makes the tasks, ``networks`` the two networks; ``eidetic`` and ``finetuning`` teach them;
``outcome`` is what came of it, ``story`` tells it in words and ``page`` in pictures.
"""

from .compare import compare
from .outcome import Outcome
from .page import to_html

__all__ = ["Outcome", "compare", "to_html"]
