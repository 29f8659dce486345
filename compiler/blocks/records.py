"""How a model calls its blocks: noted while its own forward runs, as often as it takes to see which sizes vary."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from ...signature import functions as functions_called
from ...signature.call_tree import Form, UnknownArgumentError, flatten, functions_in, functions_of, rebuild
from ...signature.functions import Result
from ...signature.modulation import GIVEN, watching
from ...signature.parameters import called as call_block
from ...signature.parameters import options_of, parameters_of
from ...signature.size_rules import Sizes, sizes_of
from ...signature.views import closed, opened
from ..code.fingerprint import Rules
from .repeated import entries_of, structures

Mark: TypeAlias = tuple[int, ...]  # the number of records of each kind

_lock = threading.Lock()  # one recording at a time: they stand on the same instances


@dataclass
class Kind:
    """A graph to be: one structure, called in one form.

    Attributes:
        structure: the blocks' architecture digest.
        form: of the arguments by name.
        names: of the blocks, as the model has them.
        block: one of them.
        records: sizes of the leaves, of each call.
        options: the model's, at the last call.
        results: by the sizes of a call, what functions among its arguments returned.
    """

    structure: str
    form: Form
    names: list[str]
    block: torch.nn.Module
    records: list[Sizes] = field(default_factory=list)
    options: Mapping[str, Any] = field(default_factory=dict)
    results: dict[Sizes, tuple[Result, ...]] = field(default_factory=dict)


@dataclass
class Recording:
    """What was noted.

    Attributes:
        kinds: in the order of their first calls.
        unknown: by the names of blocks, the argument that no graph can stand for.
    """

    kinds: list[Kind] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)

    def _note(
        self, name: str, structure: str, block: torch.nn.Module, named: Mapping[str, Any], packages: Sequence[str]
    ) -> Kind | None:
        try:
            form, leaves = flatten(named, packages)
        except UnknownArgumentError as error:
            self.unknown.setdefault(name, str(error))
            return None
        kind = next((one for one in self.kinds if (one.structure, one.form) == (structure, form)), None)
        if kind is None:
            kind = Kind(structure, form, [], block)
            self.kinds.append(kind)
        if name not in kind.names:
            kind.names.append(name)
        options = options_of(named)
        kind.options = dict(options) if isinstance(options, dict) else {}
        sizes = sizes_of(leaves)
        if sizes not in kind.records:
            kind.records.append(sizes)
        return kind

    def mark(self) -> Mark:
        """Return how much was noted so far."""
        return tuple(len(kind.records) for kind in self.kinds)

    def forget(self, start: Mark, end: Mark) -> None:
        """Forget what was noted between two marks; to be called for later ones first."""
        for number, stop in enumerate(end):
            del self.kinds[number].records[start[number] if number < len(start) else 0 : stop]


@contextlib.contextmanager
def recording(
    blocks: Mapping[str, torch.nn.Module],
    rules: Rules,
    packages: Sequence[str],
    into: Recording | None = None,
    given: Sequence[str] = (),
) -> Iterator[Recording]:
    """Note this thread's calls of the blocks while this lasts; the blocks compute as ever.

    A block of which somebody else has replaced a method is left alone.

    Args:
        packages: whose objects are taken apart by their fields.
        into: what earlier calls showed, to be added to.
        given: paths of modules of the blocks whose results are among the arguments that are noted.
    """
    recorded = into or Recording()
    structure_of = {name: digest for digest, names in structures(dict(blocks), rules).items() for name in names}
    thread = threading.get_ident()

    def with_functions(kind: Kind, block: torch.nn.Module, named: Mapping[str, Any]) -> Any:
        """The call, with what functions among its arguments return noted."""
        results: list[Result] = []
        leaves = flatten(named, packages)[1]
        functions = functions_called.noting(functions_of(kind.form, named), results, packages)
        again = rebuild(kind.form, leaves, options_of(named), functions)
        result = call_block(block, again)
        kind.results[sizes_of(leaves)] = tuple(results)
        return result

    def noting(name: str, block: torch.nn.Module, method: str) -> Callable[..., Any]:
        cls: Any = type(block)

        def called(*args: Any, **kwargs: Any) -> Any:
            kind: Kind | None = None
            bound: dict[str, Any] = {}
            named: Mapping[str, Any] = {}
            if threading.get_ident() != thread or inside:  # what a block's methods call is part of them
                return getattr(cls, method)(block, *args, **kwargs)
            with contextlib.suppress(TypeError):  # the class's own method says what is wrong
                bound = parameters_of(cls, method).bind(args, kwargs)
                named = opened(block, bound)
                if not given:
                    kind = recorded._note(name, structure_of[name], block, named, packages)
            inside.append(block)
            try:
                if kind is not None and functions_in(kind.form):
                    return closed(block, bound, with_functions(kind, block, named))
                with watching(block, named, packages, given) as watched:
                    result = getattr(cls, method)(block, *args, **kwargs)
            finally:
                inside.pop()
            if given and named:
                results = {str(one): result for one, result in watched.results.items()}
                recorded._note(name, structure_of[name], block, {**named, GIVEN: results}, packages)
            return result

        return called

    inside: list[torch.nn.Module] = []
    with _lock:
        methods = {name: entries_of(block) for name, block in blocks.items()}
        unpatched = {name: block for name, block in blocks.items() if methods[name].isdisjoint(vars(block))}
        try:
            for name, block in unpatched.items():
                vars(block).update((method, noting(name, block, method)) for method in methods[name])
            yield recorded
        finally:
            for name, block in unpatched.items():
                for method in methods[name]:
                    vars(block).pop(method, None)
