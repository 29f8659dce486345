"""What names of modules and classes refer to, compared by identity at every call that is checked."""

from __future__ import annotations

import gc
import operator
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ...common.torch_guards import dict_writes
from ...compiler.code.code_record import MISSING


def _table_of(owner: ModuleType | type) -> Any:
    """Where a module or a class has its names. A class shows a view of it, which refers to nothing else."""
    space = vars(owner)
    return space if isinstance(space, dict) else gc.get_referents(space)[0]


class WatchedNames:
    """What names of modules and classes refer to, compared by identity: 0.06 us a name.

    Holds what they refer to, so that nothing else gets its identity.
    """

    def __init__(self) -> None:
        self._writes = dict_writes()
        self._tables: list[Any] = []  # of modules and classes, what is written to
        self._then: list[Any] = []
        self._names: dict[int, tuple[ModuleType | type, set[str]]] = {}
        self._present: list[tuple[Mapping[str, Any], Callable[[Any], tuple[Any, ...]], list[int]]] = []
        self._absent: list[tuple[Mapping[str, Any], list[str]]] = []
        self._held: list[Any] = []

    def watch(self, owner: ModuleType | type, name: str) -> Any:
        """Watch what a name refers to from the next `note` on; what it does now, or `MISSING`."""
        self._names.setdefault(id(owner), (owner, set()))[1].add(name)
        return vars(owner).get(name, MISSING)

    def find(self, full: str) -> Any:
        """Follow `module:path` in the live modules and watch every step; `MISSING` where it leads nowhere."""
        module_name, _, path = full.partition(":")
        module = sys.modules.get(module_name)
        if module is None:
            return MISSING
        owner: ModuleType | type = module
        value: Any = MISSING
        for name in path.split("."):
            value = self.watch(owner, name)
            if value is MISSING:
                return MISSING
            if isinstance(value, ModuleType | type):
                owner = value
        return value

    def note(self) -> None:
        """Take down what the names refer to now."""
        self._present, self._absent, self._held = [], [], []
        self._tables = [_table_of(owner) for owner, _ in self._names.values()]
        self._then = list(map(self._writes, self._tables))  # first: what is written meanwhile is found by the next look
        for owner, names in self._names.values():
            space = vars(owner)
            values = {name: space.get(name, MISSING) for name in sorted(names)}  # once: others may delete it meanwhile
            present = {name: value for name, value in values.items() if value is not MISSING}
            if present:
                # One name more than needed: of a single one it gives no tuple.
                first = next(iter(present))
                ids = [id(present[first]), *map(id, present.values())]
                self._present.append((space, operator.itemgetter(first, *present), ids))
            if len(present) < len(values):
                self._absent.append((space, [name for name in values if name not in present]))
            self._held += present.values()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is watched."""
        return not self._names

    def same(self) -> bool:
        """Tell whether they refer to the same objects still, and the others to nothing; not before `note`."""
        if not self._names:
            return False
        writes = list(map(self._writes, self._tables))
        if writes == self._then:
            return True
        try:
            unchanged = all(list(map(id, values_of(space))) == ids for space, values_of, ids in self._present)
        except KeyError:  # a name is gone
            return False
        if not unchanged or any(any(map(space.__contains__, names)) for space, names in self._absent):
            return False
        self._then = writes
        return True

    def release(self) -> None:
        """Hold nothing any more: a custom node's function may hold a model."""
        self._held = []
