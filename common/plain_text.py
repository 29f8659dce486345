"""Text for people: what others may have named, without what a terminal or a page would obey."""

from __future__ import annotations

import unicodedata

# Control and format characters (escapes, line breaks, reversed writing), halves of names that are not UTF-8, private
# and unassigned ones, separators of lines.
_OBEYED = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def plain(text: str) -> str:
    r"""Write each character that a terminal would obey as an escape.

    >>> print(plain("photo\x1b[2J"))
    photo\x1b[2J
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(char) if unicodedata.category(char) in _OBEYED else char for char in text)


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # a byte of a name that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return ascii(char)[1:-1]
