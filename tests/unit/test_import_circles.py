"""No circle among the modules of the pack, or of the benchmarks: each can be read and imported by itself.

Nor among the rooms of a package. Which package may import which is checked in test_pack.py.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACK = sorted(path for package in ROOT.glob("*/__init__.py") for path in package.parent.rglob("*.py"))
# Packages whose folders each have one subject; what lies beside them may be used by all.
ROOMS = ("graph_cache", "host", "runtime")
FOLDERS = {"pack": PACK, "benchmarks": sorted((ROOT / "benchmarks").rglob("*.py"))}


def at_import(nodes: Iterable[ast.AST]) -> Iterator[ast.ImportFrom]:
    """The imports that run when the module is imported: none of functions, and none for type checkers alone."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from at_import(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from at_import(ast.iter_child_nodes(node))


def anywhere(nodes: Iterable[ast.AST]) -> Iterator[ast.ImportFrom]:
    """All imports, of functions and for type checkers too."""
    for node in nodes:
        yield from (one for one in ast.walk(node) if isinstance(one, ast.ImportFrom))


def imported(
    package: tuple[str, ...],
    source: str,
    known: Iterable[str],
    which: Callable[[Iterable[ast.AST]], Iterator[ast.ImportFrom]] = at_import,
) -> set[str]:
    """The modules that a module imports by relative imports, by dotted name. A package counts where it gives a name.

    Args:
        package: that the module is in, or is.
        known: all modules there are.
    """
    found = set()
    for node in which(ast.parse(source).body):
        if node.level:
            parts = [*package[: len(package) - node.level + 1], *([node.module] if node.module else [])]
            names = {alias.name: ".".join([*parts, alias.name]) for alias in node.names}
            found |= {whole if whole in known else ".".join(parts) for whole in names.values()}
    return found & set(known)


def circle(sources: Mapping[Path, str]) -> list[str]:
    """One circle of imports, as module names; empty where there is none.

    Args:
        sources: text by path from the root.
    """
    names = names_of(sources)
    known = {".".join(parts) for parts in names.values()}
    return first_circle(
        {".".join(parts): imported(path.parent.parts, sources[path], known) for path, parts in names.items()}
    )


def names_of(sources: Iterable[Path]) -> dict[Path, tuple[str, ...]]:
    """The modules' names, in parts."""
    return {path: path.parent.parts if path.stem == "__init__" else (*path.parent.parts, path.stem) for path in sources}


def rooms(package: str, sources: Mapping[Path, str]) -> dict[str, set[str]]:
    """The folders of a package, each with those whose modules its own import anywhere; a folder's folders are its own.

    Args:
        sources: text by path from the root.
    """
    known = {".".join(parts) for parts in names_of(sources).values()}
    folders = {path.parts[1] for path in sources if path.parts[0] == package and len(path.parts) > 2}
    graph: dict[str, set[str]] = {folder: set() for folder in folders}
    for path, text in sources.items():
        if path.parts[0] == package and len(path.parts) > 2:
            reached = [name.split(".") for name in imported(path.parent.parts, text, known, anywhere)]
            graph[path.parts[1]] |= {parts[1] for parts in reached if parts[0] == package and len(parts) > 1}
    return {folder: (reached & folders) - {folder} for folder, reached in graph.items()}


def first_circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """One circle of a graph; empty where there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [*error.args[1]]
    return []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_module_imports_itself_by_way_of_others(folder: str) -> None:
    assert circle({path.relative_to(ROOT): path.read_text() for path in FOLDERS[folder]}) == []


@pytest.mark.parametrize("package", ROOMS)
def test_no_room_imports_itself_by_way_of_others(package: str) -> None:
    found = rooms(package, {path.relative_to(ROOT): path.read_text() for path in PACK})
    assert first_circle(found) == []
    assert any(found.values())


def test_circles_of_rooms_are_found() -> None:
    late = "def f():\n    from ..b.y import z"
    sources = {Path("pack/a/x.py"): late, Path("pack/b/y.py"): "", Path("pack/b/c/z.py"): "from ...a import x"}
    sources |= {Path("pack/d.py"): "from .a.x import f", Path("pack/a/e.py"): "from ..d import g"}
    assert rooms("pack", sources) == {"a": {"b"}, "b": {"a"}}
    assert {*first_circle(rooms("pack", sources))} == {"a", "b"}


def circle_of(**sources: str) -> list[str]:
    return circle({Path("pack", *name.split("__")).with_suffix(".py"): text for name, text in sources.items()})


def test_circles_are_found() -> None:
    assert {*circle_of(a="from .b import x", b="from . import a")} == {"pack.a", "pack.b"}
    tried = "try:\n    from ..e import y\nexcept ImportError: ..."
    assert {*circle_of(a="from .c.d import x", c__d=tried, e="from .a import z")} == {"pack.a", "pack.c.d", "pack.e"}
    package = {Path("pack/c/__init__.py"): "from .d import x", Path("pack/c/d.py"): "from . import y"}
    assert {*circle(package)} == {"pack.c", "pack.c.d"}


def test_late_imports_and_those_for_type_checkers_make_no_circle() -> None:
    late = "def f():\n    from .a import x"
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import x"
    for text in (late, typed, "from .c import x", ""):
        assert circle_of(a="from .b import x", b=text, c="import json") == []
