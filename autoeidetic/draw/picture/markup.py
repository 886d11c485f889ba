"""XML markup from data. Names of modules are data, so everything is escaped."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape as _escape

#: Characters that XML 1.0 cannot represent, not even as entities.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def printable(text: str) -> str:
    """The text with a replacement character for everything that XML cannot represent.

    >>> printable("a\\x00b")
    'a\ufffdb'
    """
    return _FORBIDDEN.sub("\ufffd", text)


def escape(text: str) -> str:
    """Escape text for content or for an attribute in double quotes.

    >>> escape('<script>"&')
    '&lt;script&gt;&quot;&amp;'
    """
    quotes = {'"': "&quot;", "'": "&#39;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}
    return _escape(printable(text), quotes)


def number(value: float) -> str:
    """A coordinate with at most one decimal."""
    text = f"{value:.1f}"  # rounding hides differences in the last bits between machines
    return text.removesuffix(".0") if text != "-0.0" else "0"


def tag(name: str, content: str | None = None, **attributes: str | float) -> str:
    """An element; ``stroke_width=2`` becomes ``stroke-width="2"``, empty attributes are omitted."""
    parts = [name]
    for key, value in attributes.items():
        text = value if isinstance(value, str) else number(value)
        if text:
            parts.append(f'{key.replace("_", "-")}="{escape(text)}"')
    opened = " ".join(parts)
    return f"<{opened}/>" if content is None else f"<{opened}>{content}</{name}>"
