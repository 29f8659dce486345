"""Noticing that a live module is no longer what its architecture digest was taken of.

Custom nodes change models in place: a padding mode, a swapped activation, a method put over the class's own, a hook.
Weights are the binding's business; everything else is checked here, over flat lists.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import operator
import weakref
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch

from ...common.code_digest import binds_arguments
from ...common.config_text import holds_object, is_empty, may_change_in_place
from ...common.reasons import ForwardHook, ReplacedPart
from ...common.torch_guards import TensorLooks, attribute_writes, dict_writes
from ...common.torch_private import COMPILED_CALL, TABLES, every_modules_hooks, hook_tables, tables
from ...compiler.code import fingerprint
from ...compiler.code.fingerprint import Rules
from ...compiler.composite_weights import PLAIN, WeightParts
from .code_guard import custom_node, is_defined_in, is_what_its_name_says
from .named_functions import foreign_below
from .watched_names import WatchedNames

_MISSING: Any = object()
_OWN_DICT = operator.attrgetter("__dict__")
_VALUES = operator.methodcaller("values")
_PLAIN = (torch.Tensor, torch.nn.Module, type)

_trees: weakref.WeakKeyDictionary[torch.nn.Module, tuple[list[weakref.ref[torch.nn.Module]], int]] = (
    weakref.WeakKeyDictionary()
)
_tree_numbers = itertools.count(1)

Patch: TypeAlias = ForwardHook | ReplacedPart  # what takes the place of a class's own code


def _tree_number(module: torch.nn.Module, children: list[torch.nn.Module]) -> int:
    """A number by which objects a module consists of: the same for every guard, another when one is exchanged."""
    cached = _trees.get(module)
    if cached is None or [child() for child in cached[0]] != children:  # modules are equal when they are the same
        cached = _trees[module] = [weakref.ref(child) for child in children], next(_tree_numbers)
    return cached[1]


def _differs(value: Any, copied: Any) -> bool:
    """Whether a container is no longer what it was; one that holds tensors by now may not be comparable."""
    try:
        return bool(value != copied)
    except Exception:
        return True


class ModuleGuard:
    """The state of one module and its children, as it was when it was last checked.

    Holds the children, their classes and their own tables, never the module itself and no weight.

    Attributes:
        version: a number by what compiled code depends on, weights' values apart, and by which objects the children
            are; another one when that has changed, the same one when it is as it was.
        patched: why no graph can serve the module now, or None.
        composite: whether some weights consisted of several tensors when they were last read.
    """

    _state_ids: list[int]
    _containers: list[tuple[dict[str, Any], str, list[Any]]]
    _named: WatchedNames  # what interchangeable functions call
    _objects: list[tuple[dict[str, Any], str, str | None]]
    _writes_then: list[Any]
    _lengths: list[int]
    _empty: list[Any]
    _filled: list[Any]
    _weights: list[dict[str, Any]]
    _gaps: bool
    _missing: list[str]
    _spaces: list[dict[str, Any]]
    _names: list[str]
    _values: list[Any]
    _table_ids: list[int]
    _tables: list[dict[str, Any]]
    _children: list[str]
    _child_ids: list[int]
    _child_names: list[tuple[str, ...]]

    def __init__(self, module: torch.nn.Module, rules: Rules) -> None:
        self._rules = rules
        self._writes, self._attribute_writes = dict_writes(), attribute_writes()
        self.version = 0
        self.patched: Patch | None = None
        self.composite = False
        self._signature = 0
        self._metadata = 0
        self._looks: TensorLooks | None = None  # of all weights when the metadata was computed
        self._composite = 0  # of those that consist of several tensors
        self._part_writes: list[Any] = []
        self._between: list[tuple[int, operator.attrgetter[Any]]] = []
        self._keys: list[tuple[str, ...]] = []
        self._values_of: dict[tuple[str, ...], tuple[list[Any], list[Any]]] = {}
        self._digest: tuple[weakref.ref[torch.nn.Module], int, str] | None = None
        self._rebuild(module)
        self._read_weights()

    def refresh(self, module: torch.nn.Module) -> int:
        """Notice what has changed since the last look; the version."""
        if not self._same(module):
            self._rebuild(module)
        self._read_weights()
        return self.version

    def classes(self) -> set[type]:
        """Those of the module's children."""
        return self._classes

    def _read_weights(self) -> None:
        tensors = [*itertools.chain.from_iterable(map(_VALUES, self._weights))]
        if self._gaps:
            names, tensors = len(tensors), [tensor for tensor in tensors if tensor is not None]
            self._gaps = len(tensors) < names
        if self._looks is None or not self._looks.same(tensors):
            self._looks = TensorLooks(tensors)
            self._metadata = hash(tuple((t.dtype, t.shape, t.stride(), t.is_neg(), t.is_conj()) for t in tensors))
            self.composite, self._part_writes = any(type(t) not in PLAIN for t in tensors), []
        if self.composite:
            self._read_parts([t for t in tensors if type(t) not in PLAIN])
        self.version = hash((self._signature, self._metadata, self._tree, self._composite if self.composite else 0))

    def _read_parts(self, weights: list[torch.Tensor]) -> None:
        """Take down what is known of weights that consist of several tensors, their values apart."""
        writes = self._writes_to(weights)
        if writes == self._part_writes:
            return
        parts_of = self._rules.composites.parts
        parts: list[WeightParts | None] = [parts_of(weight) for weight in weights]
        self._between = [
            (number, operator.attrgetter(path.rpartition(".")[0]))
            for number, one in enumerate(parts)
            for path in ({} if one is None else one.tensors)
            if "." in path
        ]
        self._part_writes = self._writes_to(weights)
        self._composite = hash(tuple(one.metadata() for one in parts if one is not None))

    def _writes_to(self, weights: list[torch.Tensor]) -> list[Any]:
        """Numbers that every write changes to a weight, or to what is between it and its tensors."""
        owners = [*weights, *(get(weights[number]) for number, get in self._between)]
        return [self._attribute_writes(vars(one)) if hasattr(one, "__dict__") else object() for one in owners]

    def where_set(self, *attributes: str) -> str | None:
        """The first module on which one of some attributes is set to something, looked up on the modules themselves."""
        if any(map(self._states[0].get, attributes)):
            return self._where[0]
        cached = self._values_of.get(attributes)
        if cached is None or cached[0] is not self._writes_then:  # else the same objects: lists may be written to
            others = self._states[1:]
            cached = self._writes_then, [state.get(attribute) for attribute in attributes for state in others]
            self._values_of[attributes] = cached
        if not any(cached[1]):
            return None
        return self._where[1 + next(n for n, value in enumerate(cached[1]) if value) % len(self._modules)]

    def where_class_set(self, *attributes: str) -> str | None:
        """The first module whose class sets one of some attributes to something."""
        for attribute in attributes:
            if any(map(getattr, self._classes, itertools.repeat(attribute), itertools.repeat(False))):
                pairs = zip(self._where[1:], self._types, strict=True)
                return next((where for where, cls in pairs if getattr(cls, attribute, False)), None)
        return None

    def architecture(self, module: torch.nn.Module) -> str:
        """The architecture digest of the module, or of a skeleton of it, computed once for each version of either."""
        cached = self._digest
        if cached is None or cached[0]() is not module or cached[1] != self.version:
            cached = weakref.ref(module), self.version, fingerprint.digest(module, self._rules)
            self._digest = cached
        return cached[2]

    def _same(self, module: torch.nn.Module) -> bool:
        if (
            vars(module) is not self._states[0]
            or type(module) is not self._type
            or list(map(type, self._modules)) != self._types
            or list(map(id, map(_OWN_DICT, self._modules))) != self._state_ids
            or any(self._empty)
            or not (self._named.is_empty or self._named.same())
            or (self._containers and any(_differs(space.get(name), copied) for space, name, copied in self._containers))
            or (
                self._objects
                and any(self._rules.describe(space.get(name)) != was for space, name, was in self._objects)
            )
        ):
            return False
        # Read first: what is written meanwhile is then found by the next look.
        writes, then = [*map(self._attribute_writes, self._states), *map(self._writes, self._filled)], self._writes_then
        if writes == then:
            return True
        if writes[1:] == then[1:]:  # the route to a block is written there at each call of the model
            if not self._attributes_same():
                return False
            then[0] = writes[0]
            return True
        if list(map(len, self._filled)) != self._lengths or not self._all_same():
            return False
        self._writes_then, self._gaps = writes, True
        return True

    def _all_same(self) -> bool:
        """Whether all that is taken down of all modules is as before."""
        return (
            all(map(operator.is_, map(dict.get, self._missing_of, self._missing), itertools.repeat(None)))
            and list(map(dict.get, self._spaces, self._names)) == self._values
            and self._ids_of_tables() == self._table_ids
            and list(map(id, map(dict.get, self._tables, self._children))) == self._child_ids
            and list(map(tuple, self._child_tables)) == self._child_names
            and self._only_placed()
        )

    def _attributes_same(self) -> bool:
        """Whether the module itself, which was written to, has its attributes as before."""
        state, keys = self._states[0], self._keys[0]
        if (
            list(map(id, map(state.get, TABLES))) != self._table_ids[:: len(self._states)]
            or list(map(state.get, self._own_names)) != self._own_values
            or (keys != (now := tuple(state)) and self._telling(keys, 0) != self._telling(now, 0))
        ):
            return False
        self._keys[0] = now
        return True

    def _only_placed(self) -> bool:
        """Whether attributes came or went by which the host places weights, and nothing else."""
        keys = list(map(tuple, self._states))
        for number, (before, now) in enumerate(zip(self._keys, keys, strict=True)):
            if before != now and self._telling(before, number) != self._telling(now, number):
                return False
        self._keys = keys
        return True

    def _ids_of_tables(self) -> list[int]:
        """Of the tables that each module has: whoever gives it another one changes all that is in it."""
        return [id(state.get(name)) for name in TABLES for state in self._states]

    def _telling(self, keys: Iterable[str], number: int) -> frozenset[str]:
        """Those of a module's attributes that may say what it computes. `number`: 0 is the model itself."""
        telling = (k for k in keys if k not in fingerprint.OF_EVERY_MODULE and not self._rules.placement(k))
        return frozenset(telling) - (self._intercepted if number == 0 else frozenset())

    def _rebuild(self, module: torch.nn.Module) -> None:
        """Take everything down as it is now."""
        named = [*module.named_modules()]
        self._intercepted = self._rules.intercepted(module)
        referenced, compared = fingerprint.referenced_names(module), fingerprint.compared_numbers(module, self._rules)
        self._modules = [child for _, child in named[1:]]
        self._type, self._types = type(module), [type(child) for child in self._modules]
        self._classes = {*self._types}
        self._states = [vars(child) for _, child in named]
        self._child_tables = children = [tables(child).children for _, child in named]
        weights = [table for _, child in named for table in tables(child)[:2]]
        hooks = [*every_modules_hooks(), *(table for _, child in named for table in hook_tables(child))]
        # Before all else that is read: what is written meanwhile is then found by the next look.
        self._empty, self._filled = [], []  # most of a module's tables are empty: that they are tells all of these
        for table in (*children, *weights, *hooks):
            (self._filled if table else self._empty).append(table)
        self._writes_then = [*map(self._attribute_writes, self._states), *map(self._writes, self._filled)]
        of_weights = {*map(id, weights)}
        self._weights, self._gaps = [table for table in self._filled if id(table) in of_weights], True
        self._table_ids = self._ids_of_tables()
        self._where = [f"{name or 'the model'} ({type(child).__name__})" for name, child in named]
        self._state_ids = list(map(id, self._states[1:]))
        self._keys = list(map(tuple, self._states))
        self._tree = _tree_number(module, self._modules)
        missing = [(table, name) for table in self._weights for name, tensor in table.items() if tensor is None]
        self._missing_of: list[dict[str, Any]] = [table for table, _ in missing]
        self._missing = [name for _, name in missing]
        self._lengths = list(map(len, self._filled))
        self._child_names = list(map(tuple, children))
        pairs = [(table, name) for table in children for name in table]
        self._tables, self._children = [table for table, _ in pairs], [name for _, name in pairs]
        self._child_ids = list(map(id, map(dict.get, self._tables, self._children)))
        self._named = WatchedNames()
        facts: list[tuple[dict[str, Any], str]] = []
        signature: list[Any] = []
        self.patched = ForwardHook("every module") if any(every_modules_hooks()) else None
        signature.append(self.patched)
        posing = {cls for cls in {*self._types, type(module)} if not is_what_its_name_says(cls)}
        for (name, child), where in zip(named, self._where, strict=True):
            signature.append((name, type(child), *fingerprint.attributes(child, referenced, compared, self._rules)))
            facts.append((vars(child), COMPILED_CALL))
            if vars(child).get(COMPILED_CALL) is not None:
                signature.append(where)
                self.patched = self.patched or ReplacedPart("compile()", where, "torch.compile")
            for key, value in vars(child).items():
                if key in fingerprint.OF_EVERY_MODULE or self._rules.placement(key):
                    continue
                if child is module and key in self._intercepted:
                    continue
                if key in referenced or callable(value):
                    if callable(value) or is_empty(value) or self._rules.describe(value) is not None:
                        facts.append((vars(child), key))
                    replaced = self._patch(child, key, value, where)
                    if replaced is not None:
                        signature.append(replaced)
                        self.patched = self.patched or replaced
            if any(hook_tables(child)):
                hook = ForwardHook(where)
                signature.append(hook)
                self.patched = self.patched or hook
            if type(child) in posing:
                functions = (value for value in vars(type(child)).values() if callable(value))
                self.patched = self.patched or ReplacedPart("class", where, custom_node(next(functions, None)))
        self._spaces, self._names = [space for space, _ in facts], [key for _, key in facts]
        self._values = list(map(dict.get, self._spaces, self._names))
        self._own_names = [key for space, key in facts if space is self._states[0]]
        self._own_values = list(map(self._states[0].get, self._own_names))
        self._named.note()
        self._containers = [
            (space, name, copy.deepcopy(space[name]))
            for space, name in facts
            if may_change_in_place(space.get(name)) and not holds_object(space[name])
            if is_empty(space[name]) or self._rules.describe(space[name])
        ]
        held = [(space, name) for space, name in facts if holds_object(space.get(name))]
        texts = [self._rules.describe(space.get(name)) for space, name in held]
        self._objects = [(*one, text) for one, text in zip(held, texts, strict=True) if text is not None]
        self._signature = hash(tuple(signature))

    def _patch(self, module: torch.nn.Module, name: str, value: Any, where: str) -> ReplacedPart | None:
        """A function on the module itself where the class has its own, or a foreign one of several of the host's."""
        if not callable(value) or isinstance(value, _PLAIN):
            return None
        if name in self._rules.interchangeable:
            package = type(module).__module__.partition(".")[0]
            is_hosts = is_defined_in(value, package) and not binds_arguments(value)
            below = (
                [value] if not is_hosts else [one for _, one in foreign_below(value, self._named, self._rules.beside)]
            )
            return ReplacedPart(name, where, custom_node(below[0])) if below else None
        if inspect.getattr_static(type(module), name, _MISSING) is _MISSING:
            return None
        if fingerprint.is_own_method(module, name, value):
            return None
        if is_defined_in(value, type(module).__module__.partition(".")[0]):
            return ReplacedPart(name, where, own=True)
        return ReplacedPart(name, where, custom_node(value))
