"""The width of text in a picture, and the notation of shapes and numbers."""

from __future__ import annotations

from collections.abc import Sequence

TIMES = "×"  # noqa: RUF001
# Rough classes of character widths. Text is not measured: fonts differ between machines, and a
# picture must be the same on all of them.
_NARROW = set("iIljtfr.,:;'|!()[]/ -")
_WIDE = set("mwMW@%")


def width(text: str, size: float) -> float:
    """The estimated width of a line in a sans-serif font; rather too wide than too narrow."""
    units = 0.0
    for character in text:
        if character in _NARROW:
            units += 0.36
        elif character in _WIDE:
            units += 0.9
        elif ord(character) > 0x2E80:  # ideographs are square
            units += 1.0
        else:
            units += 0.72 if character.isupper() else 0.58
    return units * size


def shortened(text: str, most: int = 34) -> str:
    """A long name with its middle replaced by an ellipsis.

    >>> shortened("relative_position_bias_table", 16)
    'relativ…as_table'
    """
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half]}…{text[-(most - 1 - half) :]}"


def size_text(shape: Sequence[int]) -> str:
    """A shape without the batch dimension.

    >>> size_text((2, 64, 56, 56)) == TIMES.join(["64", "56", "56"])
    True
    """
    return TIMES.join(str(n) for n in shape[1:])


def count_text(number: int) -> str:
    """A number in a form short enough for a box.

    >>> count_text(25557032), count_text(9408), count_text(64)
    ('25.6M', '9.4k', '64')
    """
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.1f}{name}"
    return str(number)
