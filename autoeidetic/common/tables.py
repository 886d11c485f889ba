"""Table: rows of text with aligned columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, the first to the left, the others to the right.

    >>> print(table([["task", "accuracy"], ["digits", "0.98"]]))
    task    accuracy
    digits      0.98
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def number(value: float, form: str = ".4f") -> str:
    """A number, or nothing for NaN.

    >>> number(0.5), number(math.nan)
    ('0.5000', '')
    """
    return "" if math.isnan(value) else format(value, form)


def line(text: str) -> str:
    """A name of the user's on one line, with nothing in it that cannot be printed.

    >>> line("a" + chr(10) + "b")
    'a\\\\nb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def html(text: str) -> str:
    """A table for a notebook."""
    return f"<pre>{escape(text)}</pre>"
