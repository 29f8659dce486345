"""What a block reads of the model's options while it is captured: a graph is right while these are as they were.

Options are a dictionary that ComfyUI's samplers and other packages fill. A block looks into it for patches, an
attention function, or its own number; whatever it did not ask for makes no difference to its graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str, ...]
_PLAIN = (bool, int, float, str)
_HOSTS = ("patches", "patches_replace", "wrappers", "callbacks")  # dictionaries that no block fills
_MISSING: Any = object()
_UNREADABLE: Any = object()


class UnreadableOptionsError(TypeError):
    """A block did with the options what no graph can honour: it changed them, or went through all of them."""


@dataclass(frozen=True)
class OptionGuards:
    """What a call's options must be like.

    Attributes:
        absent: paths of keys with nothing behind them: missing or None, or empty in dictionaries of the host's. Any
            other list or dictionary that is empty may be there for a block to fill.
        present: paths of keys of which a block asked no more than whether there is something.
        values: plain values behind paths of keys.
    """

    absent: tuple[Path, ...] = ()
    present: tuple[Path, ...] = ()
    values: tuple[tuple[Path, bool | int | float | str], ...] = ()

    def refused(self, options: Any) -> Path | None:
        """Return the first path at which a call's options are not as they were, or None."""
        plain = type(options) is dict
        for path in self.absent:
            if plain and path[0] not in options:
                continue
            if looked_up(options, path) is not _MISSING:
                return path
        for path in self.present:
            if looked_up(options, path) is _MISSING:
                return path
        for path, value in self.values:
            current = looked_up(options, path)
            if type(current) is not type(value) or current != value:
                return path
        return None

    def to_json(self) -> dict[str, Any]:
        """Return everything, JSON-ready."""
        return {
            "absent": [*map(list, self.absent)],
            "present": [*map(list, self.present)],
            "values": [[list(path), value] for path, value in self.values],
        }

    @classmethod
    def from_json(cls, data: Any) -> OptionGuards:
        """Read what `to_json` made.

        Raises:
            ValueError: it is something else.
        """
        try:
            values = tuple((_path(path), value) for path, value in data["values"])
            guards = cls(tuple(map(_path, data["absent"])), tuple(map(_path, data["present"])), values)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no guards of options: {data!r}") from error
        if any(type(value) not in _PLAIN for _, value in values):
            raise ValueError(f"no guards of options: {data!r}")
        return guards


def _path(keys: Any) -> Path:
    if type(keys) not in (list, tuple) or not all(type(key) is str for key in keys):
        raise ValueError("no path of keys")
    return tuple(keys)


def looked_up(options: Any, path: Path) -> Any:
    """Return what lies behind a path of keys; a value of this module's own where nothing does, or nobody can tell."""
    for key in path:
        if options is None:
            return _MISSING
        if type(options) not in (dict, RecordedOptions, _OwnOptions):  # its `get` may be its own
            return _UNREADABLE
        options = dict.get(options, key, _MISSING)
        if options is _MISSING:
            return _MISSING
    if options is None or (isinstance(options, dict | list | tuple) and not options and path[0] in _HOSTS):
        return _MISSING
    return options


class RecordedOptions(dict[str, Any]):
    """Options that note what is read of them, dictionaries inside included.

    Args:
        options: as they were given.
        replaced: keys at the top that the capture has put there, e.g. the attention function: a call must not have one
            of those that are read.
        followed: keys at the top that the graph follows whatever is behind them.

    Raises:
        UnreadableOptionsError: from whatever changes it or goes through it.
    """

    def __init__(self, options: Mapping[str, Any], replaced: Iterable[str] = (), followed: Iterable[str] = ()) -> None:
        super().__init__(options)
        self._reads: dict[Path, bool] = {}  # whether the value was read, not only its presence
        self._opened: set[Path] = set()  # of dictionaries that were given out: what is read in them counts
        self._prefix: Path = ()
        self._replaced = frozenset(replaced)
        self._followed = frozenset(followed)
        self._replaced_reads: set[str] = set()
        self._added: set[str] = set()  # keys that a block has put into its own copy

    def guards(self) -> OptionGuards:
        """Return what was read, as guards.

        Raises:
            UnreadableOptionsError: a value that was read is no plain one.
        """
        inner = {path[:end] for path in self._reads for end in range(1, len(path))}
        absent: list[Path] = [(key,) for key in sorted(self._replaced_reads)]
        present: list[Path] = []
        values: list[tuple[Path, bool | int | float | str]] = []
        for path in sorted(self._reads.keys() - inner - self._opened):
            value = looked_up(self, path)
            if value is _MISSING:
                absent.append(path)
            elif not self._reads[path]:
                present.append(path)
            elif type(value) in _PLAIN:
                values.append((path, value))
            else:
                raise UnreadableOptionsError(f"the block reads {'.'.join(path)} of the options")
        return OptionGuards(tuple(absent), tuple(present), tuple(values))

    def _note(self, key: Any, read: bool) -> Any:
        value = dict.get(self, key, _MISSING)
        if not self._prefix and (key in self._added or key in self._followed):
            return value
        if not self._prefix and key in self._replaced:
            self._replaced_reads.add(key)
        else:
            path = (*self._prefix, str(key))
            self._reads[path] = self._reads.get(path, False) or read
        if type(value) is dict and read:
            below = RecordedOptions(value)
            below._reads, below._opened, below._prefix = self._reads, self._opened, (*self._prefix, str(key))
            self._opened.add(below._prefix)
            return below
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        value = self._note(key, True)
        return default if value is _MISSING else value

    def __getitem__(self, key: Any) -> Any:
        value = self._note(key, True)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def __contains__(self, key: Any) -> bool:
        return self._note(key, False) is not _MISSING

    def copy(self) -> RecordedOptions:
        """A copy whose reads are this one's; changes of a copy are nobody's business but the block's."""
        made = _OwnOptions(dict(dict.items(self)), self._replaced, self._followed)
        made._reads, made._prefix, made._replaced_reads = self._reads, self._prefix, self._replaced_reads
        made._opened = self._opened
        made._added = {*self._added}
        return made

    def is_copy_of(self, other: RecordedOptions) -> bool:
        """Tell whether this is the other one, or was copied from it."""
        return self._reads is other._reads and not self._prefix

    def additions(self) -> dict[str, Any]:
        """Return what a block has put into its copy."""
        return {key: dict.__getitem__(self, key) for key in self._added}

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise UnreadableOptionsError("the block changes the options, or goes through all of them")

    __setitem__ = __delitem__ = pop = popitem = setdefault = update = clear = __iter__ = _refuse
    keys = values = items = __ior__ = __or__ = __ror__ = __len__ = __eq__ = __reversed__ = _refuse
    __hash__ = None


class _OwnOptions(RecordedOptions):
    """A block's own copy of the options: it may write there, and what it wrote is its own."""

    def __setitem__(self, key: str, value: Any) -> None:
        self._added.add(key)
        dict.__setitem__(self, key, value)
