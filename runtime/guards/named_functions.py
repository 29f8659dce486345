"""What a function calls by name, and what those of its folder call: whoever replaces one changes what it computes."""

from __future__ import annotations

import sysconfig
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from ...common.code_digest import home_of, is_at_home, is_function, nested, unwrap_chain
from ...compiler.code.code_record import global_references, resolve
from .watched_names import WatchedNames

# Where functions of libraries and of Python itself stand; Python's own frozen ones have no file.
LIBRARIES = ("<frozen", *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
LIBRARIES += (str(Path(torch.__file__).parents[1]),)


def is_known(function: Any, package: str) -> bool:
    """Tell whether a function, and what it wraps, is a package's or a library's: an installed one's, or Python's."""
    return all(
        home_of(one).partition(".")[0] == package or one.__code__.co_filename.startswith(LIBRARIES)
        for one in unwrap_chain(function)
    )


def _belongs(function: Any, full: str, package: str) -> bool:
    """Tell whether a library's function has its own name, or one of its own package's: another one was put there."""
    owner, _, path = full.partition(":")
    name = path.rpartition(".")[2]
    outermost = next(unwrap_chain(function))
    home = home_of(outermost).partition(".")[0]
    return home == package or outermost.__name__ == name or home in (owner.partition(".")[0], path.partition(".")[0])


def foreign_below(function: Any, names: WatchedNames, without: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the functions of others that a package's function names, or that those name which it calls.

    Functions of its folder are followed, and what these name elsewhere one step: all that functions name in turn is
    most of a package. Each comes with its name, `module:path`.

    Args:
        names: watches all that is named, from its next `note` on.
        without: names of a module that are not followed.
    """
    outermost = next(unwrap_chain(function), None)
    if outermost is None:
        return
    package, folder = home_of(outermost).partition(".")[0], home_of(outermost).rpartition(".")[0]
    pending, seen = [function], set[int]()
    while pending:
        for one in unwrap_chain(pending.pop()):
            is_inside = home_of(one).startswith(folder)
            if id(one) in seen or not is_at_home(one):
                continue
            seen.add(id(one))
            attributes = sorted({name for code in nested(one.__code__) for name in code.co_names})
            methods = ((f"torch:Tensor.{name}", names.watch(torch.Tensor, name)) for name in attributes)
            paths = (path for path in global_references(one.__code__) if path[0] not in without)
            called = (f"{home_of(one)}:{'.'.join(path[: resolve(one.__globals__, path)[1]])}" for path in paths)
            for full, value in (*methods, *((full, names.find(full)) for full in called)):
                if is_function(value) and not (is_known(value, package) and _belongs(value, full, package)):
                    yield full, value
                elif is_function(value) and is_inside and home_of(next(unwrap_chain(value))).startswith(package):
                    pending.append(value)
