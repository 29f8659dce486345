"""No circle among the modules of the pack, or of the benchmarks: each can be read and imported by itself."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACK = sorted(path for package in ROOT.glob("*/__init__.py") for path in package.parent.rglob("*.py"))
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


def imported(package: tuple[str, ...], source: str, known: Iterable[str]) -> set[str]:
    """The modules that a module imports by relative imports, by dotted name. A package counts where it gives a name.

    Args:
        package: that the module is in, or is.
        known: all modules there are.
    """
    found = set()
    for node in at_import(ast.parse(source).body):
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
    names = {
        path: path.parent.parts if path.stem == "__init__" else (*path.parent.parts, path.stem) for path in sources
    }
    known = {".".join(parts) for parts in names.values()}
    graph = {".".join(parts): imported(path.parent.parts, sources[path], known) for path, parts in names.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [*error.args[1]]
    return []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_module_imports_itself_by_way_of_others(folder: str) -> None:
    assert circle({path.relative_to(ROOT): path.read_text() for path in FOLDERS[folder]}) == []


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
