"""Tables: rows of text with aligned columns."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from html import escape


def table(rows: Sequence[Sequence[str]], right: Collection[int] | None = None) -> str:
    """Rows with aligned columns: those in ``right`` (all but the first) to the right.

    >>> print(table([["task", "accuracy"], ["digits", "0.98"]]))
    task    accuracy
    digits      0.98
    """
    if right is None:
        right = range(1, len(rows[0]))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def number(value: float, form: str = ".4f") -> str:
    """A number as text; empty for NaN.

    >>> number(0.5), number(math.nan)
    ('0.5000', '')
    """
    return "" if math.isnan(value) else format(value, form)


def line(text: str) -> str:
    """A name on one line, with escapes for what cannot be printed.

    >>> line("a" + chr(10) + "b")
    'a\\\\nb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def notebook_html(text: str) -> str:
    """A table as a notebook shows it."""
    return f"<pre>{escape(text)}</pre>"
