"""The base of all reasons."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import dataclass_transform, override

from ..memory import in_words
from ..plain_text import plain

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # that a word of a name begins with


class _Template(string.Formatter):
    """As `str.format`, with two formats more.

    `()` writes a fact in brackets where there is one, `bytes` a number of bytes in words.

    >>> _Template().format("no room{why:()}; {size:bytes} are free{detail:()}", why="disk", size=3 << 29, detail="")
    'no room (disk); 1.5 GiB are free'
    """

    @override
    def format_field(self, value: Any, format_spec: str) -> Any:
        if format_spec == "()":
            return f" ({value})" if value else ""
        return in_words(value) if format_spec == "bytes" else format(value, format_spec)


_template = _Template()


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True, eq=False, repr=False)
class Reason:
    """Why something was refused, or is as it is. Each subclass is a frozen dataclass of facts, without the decorator.

    Attributes:
        code: names the kind for programs and never changes once released; the class's name in snake case, where the
            class gives no other.
        sentence: template over the facts, see `_Template`: one clause without a full stop, as it follows "uncompiled: "
            on a node. A class whose clause takes more than that overrides `clause`.
    """

    code: ClassVar[str]
    sentence: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "code" not in vars(cls):
            cls.code = _CAPITAL.sub("_", cls.__name__).lower()
        if vars(cls).get("__annotations__"):  # one without facts of its own is as its base is, which takes no time
            dataclass(frozen=True, eq=False, repr=False)(cls)

    # Written once: to generate these for each of two hundred classes takes as long as to list thousands of graphs.

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({facts})"

    def clause(self) -> str:
        return _template.vformat(self.sentence, (), vars(self))

    @property
    def text(self) -> str:
        """The clause. Names in it may be anybody's: none reaches a terminal as it is."""
        return plain(self.clause())

    def __str__(self) -> str:
        return self.text


def classes(kind: type[Reason] = Reason) -> Iterator[type[Reason]]:
    """Iterate over the classes of reasons below one."""
    for child in kind.__subclasses__():
        yield child
        yield from classes(child)


def ended(clause: str) -> str:
    """End a clause as a sentence."""
    return clause if clause.endswith(".") else f"{clause}."
