"""What the documentation names exists: paths, links, commands, variables, and what benchmarks import of the pack."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import typer
from markdown_it import MarkdownIt
from typer.core import TyperGroup

from onegraph.cli.app import app
from onegraph.common import reasons

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "README.zh.md", "README.ja.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "web" / "docs").glob("*.md")),
]
FOLDERS = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
BUILT = ("build",)  # exist after a command only
COMMANDS = typer.main.get_group(app).commands
TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)
SCRIPTS = sorted(path for folder in ("benchmarks", "tools") for path in (ROOT / folder).rglob("*.py"))

_IN_A_TABLE = 5  # the level of a cell's text
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
ANCHOR = re.compile(r"\]\(([^)#]*)#([^)]+)\)")
VARIABLE = re.compile(r"\bONEGRAPH_[A-Z_]+")
FILE = re.compile(rf"(?<![\w./-])(?:{'|'.join(name for name in FOLDERS if name not in BUILT)})/[\w./-]*\w")
MAKE = re.compile(r"(?:^|[\w/.=]+ )make ([a-z-]+)")
COMMAND = re.compile(r"^onegraph (\w+)([^#]*)")
BENCHMARK = re.compile(r"python -m (benchmarks[\w.]*)")

on_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def code(page: Path) -> list[str]:
    """Texts in backticks, and the lines of code blocks."""
    blocks = re.findall(r"```\w*\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [*lines, *re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))]


@cache
def sources() -> str:
    return "\n".join(path.read_text() for path in ROOT.rglob("*.py") if not {"build", ".venv"} & {*path.parts})


def test_pages_have_what_is_looked_for() -> None:
    """A page may lack some of it, so a pattern that finds nothing any more would pass on each."""
    texts = [page.read_text() for page in PAGES]
    lines = [line for page in PAGES for line in code(page)]
    for pattern, given in (
        (LINK, texts),
        (VARIABLE, texts),
        (FILE, lines),
        (MAKE, lines),
        (COMMAND, lines),
        (BENCHMARK, lines),
    ):
        assert sum(len(pattern.findall(text)) for text in given) > 1, pattern.pattern


@on_each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@on_each_page
def test_users_read_uncompiled(page: Path) -> None:
    """PyTorch's word for it stays in names of options, fields and files, and where developers read."""
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    assert page.name == "CONTRIBUTING.md" or re.findall(r"\beager\w*", prose, re.IGNORECASE) == []


def anchors(page: Path) -> set[str]:
    """The names by which GitHub links to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@on_each_page
def test_anchors_exist(page: Path) -> None:
    for target, anchor in ANCHOR.findall(page.read_text()):
        if not target.startswith("https://"):
            assert anchor in anchors(page.parent / target if target else page), f"{target}#{anchor}"


def broken(text: str) -> list[str]:
    """Lines that are meant as rows of a table, or as code, and are read as a text, or as a row of another width."""
    found: list[str] = []
    width = 0
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "table_open" and token.map:
            rows = [re.sub(r"`[^`]*`", "", row).count("|") for row in text.splitlines()[slice(*token.map)]]
            width = rows[0]
            found += [f"{count - 1} cells, not {width - 1}" for count in rows if count != width]
        elif token.type == "inline" and token.level < _IN_A_TABLE:
            found += [line for line in token.content.splitlines() if line.startswith(("|", "```"))]
    if sum(line.lstrip().startswith("```") for line in text.splitlines()) % 2:
        found.append("a code block has no end")
    return found


@on_each_page
def test_tables_and_code_are_read_as_such(page: Path) -> None:
    assert broken(page.read_text()) == []


def test_a_broken_table_is_found() -> None:
    assert broken("| a | b |\n| --- | --- |\n| 1 | 2 |\n") == []
    assert broken("a text\n| a | b |\n") == ["| a | b |"]
    assert broken("| a | b |\n| --- |\n| 1 | 2 |\n") == ["| a | b |", "| --- |", "| 1 | 2 |"]
    assert broken("| a | b |\n| --- | --- |\n| 1 |\n") == ["1 cells, not 2"]
    assert broken("```sh\nls\n") == ["a code block has no end"]


@on_each_page
def test_paths_exist(page: Path) -> None:
    """A word that begins with a folder of this repository, in code, is a path in it."""
    for text in code(page):
        for path in FILE.findall(text):
            assert (ROOT / path).exists() or any(ROOT.glob(f"{path}.*")), path


@on_each_page
def test_commands_exist(page: Path) -> None:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text()))
    for text in code(page):
        for target in MAKE.findall(text):
            assert target in targets, text
        for name, rest in COMMAND.findall(text):
            command = COMMANDS[name]
            if isinstance(command, TyperGroup) and rest.strip():
                command = command.commands[rest.split()[0]]
            options = {option for parameter in command.params for option in parameter.opts}
            assert set(re.findall(r"--[a-z-]+", rest)) <= options, text
        for module in BENCHMARK.findall(text):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_the_table_of_faults_names_codes() -> None:
    """Those that there are, and all of entries that are not trusted or damaged."""
    section = (ROOT / "docs" / "store.md").read_text().split("## How each fault ends")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")]
    named = {word for row in rows for word in re.findall(r"`([a-z_]+)`", row)}
    found = [kind for kind in vars(reasons).values() if isinstance(kind, type) and issubclass(kind, reasons.Reason)]
    codes = {kind: kind.code for kind in found if kind is not reasons.Reason}
    assert named <= set(codes.values())
    bases = (reasons.Untrusted, reasons.Damaged)
    assert {code for kind, code in codes.items() if issubclass(kind, bases) and kind not in bases} <= named


@on_each_page
def test_variables_are_read_somewhere(page: Path) -> None:
    for name in VARIABLE.findall(page.read_text()):
        assert f'"{name}"' in sources(), name


def defined(path: Path) -> set[str]:
    """Names that a module defines or imports at its top level, conditions included."""
    names = {path.stem for path in path.parent.glob("*.py")} if path.name == "__init__.py" else set()
    names |= {path.parent.name for path in path.parent.glob("*/__init__.py")} if path.name == "__init__.py" else set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            names |= defined(path.parent / f"{node.module}.py")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def source_of(module: str) -> Path | None:
    """The file of a module of the pack."""
    path = ROOT.joinpath(*module.split(".")[1:])
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_scripts_use_what_the_pack_defines(script: Path) -> None:
    """Benchmarks need a GPU or minutes, so that no test runs them."""
    tree = ast.parse(script.read_text())
    modules: dict[str, set[str]] = {}  # a name in the script -> what the modules of that name define
    for node in ast.walk(tree):
        if not (isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "onegraph"):
            continue
        origin = source_of(node.module)
        assert origin is not None, node.module
        for alias in node.names:
            assert alias.name in defined(origin), f"{node.module}: {alias.name}"
            module = source_of(f"{node.module}.{alias.name}")
            if module is not None:
                modules.setdefault(alias.asname or alias.name, set()).update(defined(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            assert node.attr in modules[node.value.id], f"{node.value.id}.{node.attr}"


def test_pictures_are_small() -> None:
    """They come with every clone."""
    found = sorted((ROOT / "docs" / "pictures").glob("*.png"))
    assert {path.name for path in found if path.stat().st_size > 200_000} == set()
