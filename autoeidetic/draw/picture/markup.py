"""Markup: XML from data. Names of modules are data, so nothing is ever pasted in unescaped."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape as _escape

#: What XML 1.0 has no way to write, not even as an entity.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def printable(text: str) -> str:
    """The text with a mark in place of every character that XML cannot hold.

    >>> printable("a\\x00b")
    'a\ufffdb'
    """
    return _FORBIDDEN.sub("\ufffd", text)


def escape(text: str) -> str:
    """Text as content or as an attribute between double quotes.

    >>> escape('<script>"&')
    '&lt;script&gt;&quot;&amp;'
    """
    quotes = {'"': "&quot;", "'": "&#39;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}
    return _escape(printable(text), quotes)


def number(value: float) -> str:
    """As short as possible, and the same on every machine."""
    text = f"{value:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"


def tag(name: str, content: str | None = None, **attributes: str | float) -> str:
    """An element; ``stroke_width=2`` becomes ``stroke-width="2"``. Empty ones are left out."""
    parts = [name]
    for key, value in attributes.items():
        text = value if isinstance(value, str) else number(value)
        if text:
            parts.append(f'{key.replace("_", "-")}="{escape(text)}"')
    opened = " ".join(parts)
    return f"<{opened}/>" if content is None else f"<{opened}>{content}</{name}>"
