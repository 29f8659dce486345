"""Nothing in a workflow, the queue or a URL can import a graph, name a file of the store, or give trust.

What does so is in modules that only the command reaches. These tests read the sources, since a test that calls nodes
and routes would miss the one that somebody adds.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
# What takes graphs over, gives them away, or says whom to trust.
DOORS = {
    "graph_cache/trust/trust_list.py",
    *(f"graph_cache/sources/{name}.py" for name in ("bundle", "commands", "exporting", "pushing")),
}
# Where what a user's client sends is read.
ENTRANCES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "__init__.py", *(p for name in ("nodes", "host") for p in (ROOT / name).rglob("*.py")))
)


def module(parts: tuple[str, ...]) -> str | None:
    """The file of a module of the pack."""
    path = ROOT.joinpath(*parts)
    found = next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
    return None if found is None or not parts else found.relative_to(ROOT).as_posix()


@cache
def imported(name: str) -> frozenset[str]:
    """The files of the pack that a file imports anywhere, in its functions too."""
    found: set[str | None] = set()
    base = Path(name).parent.parts
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
            found |= {module(parts[1:]) for parts in names if parts[0] == "onegraph"}
        elif isinstance(node, ast.ImportFrom):
            parts = tuple(node.module.split(".")) if node.module else ()
            if not node.level and parts[:1] != ("onegraph",):
                continue
            parts = base[: len(base) - node.level + 1] + parts if node.level else parts[1:]
            found |= {module(parts), *(module((*parts, alias.name)) for alias in node.names)}
    return frozenset(file for file in found if file is not None)


def reached(start: str) -> set[str]:
    """All files of the pack that a file imports, by whatever way."""
    seen, todo = set[str](), [start]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += imported(name)
    return seen


def test_the_command_reaches_the_doors() -> None:
    """Else the other tests would look for what has another name now."""
    assert reached("cli/app.py") >= DOORS


@pytest.mark.parametrize("name", ENTRANCES)
def test_nodes_and_routes_reach_no_door(name: str) -> None:
    assert "graph_cache/store.py" in reached("nodes/compile_model.py")
    assert not reached(name) & DOORS
    assert not any(file.startswith("cli/") for file in reached(name))


def test_nobody_starts_the_command() -> None:
    """As a process of its own it could do for a workflow what only a user may do."""
    command = re.compile(r"onegraph\.cli|from \.+cli\b")
    assert command.search((ROOT / "pyproject.toml").read_text())
    others = [path for package in PACKAGES if package != "cli" for path in (ROOT / package).rglob("*.py")]
    assert [path for path in others if command.search(path.read_text())] == []


def calls(name: str) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse((ROOT / name).read_text())) if isinstance(node, ast.Call)]


ONEDIFF, ACTIONS = "nodes/onediff.py", "nodes/onediff_actions.py"  # nodes with texts of old, and what they do
# Objects that other nodes made, choices from lists, which ComfyUI refuses where they are not in the list, and numbers.
_KINDS = ("Model", "Clip", "Vae", "ControlNet", "Latent", "Image", "Combo", "Boolean", "Int")
HARMLESS = {f"io.{kind}.Input" for kind in _KINDS}


@pytest.mark.parametrize("name", [name for name in ENTRANCES if name.startswith("nodes/")])
def test_no_input_of_a_node_is_a_text(name: str) -> None:
    kinds = [ast.unparse(call.func) for call in calls(name) if ast.unparse(call.func).endswith(".Input")]
    objects = {kind for kind in kinds if kind.startswith("_")}  # of types that only nodes of this pack make
    assert set(kinds) - objects <= (HARMLESS | {"io.String.Input"} if name == ONEDIFF else HARMLESS)


def test_the_texts_of_onediffs_nodes_are_not_read() -> None:
    nodes, actions = ((ROOT / name).read_text() for name in (ONEDIFF, ACTIONS))
    texts = {*re.findall(r'_word\("(\w+)"', nodes)}
    read = {*re.findall(r'inputs(?:\[|\.get\()"(\w+)"', actions), *re.findall(r'pass_on\("(\w+)"', nodes)}
    assert texts and "custom_booster" in read
    assert not texts & read
    assert nodes.count("io.String.Input(") == 1  # where `_word` makes them


REQUEST_HANDLER = "host/page/request_handler.py"
# What clients may send, by kind of value. Texts are compared with what is there, and name nothing: of a graph or a job
# the id is sent, which is looked up in a list; of a prompt ComfyUI's. A workflow is what ComfyUI's own route takes.
FIELDS = {
    "id": "id", "job": "id", "state": "text", "model": "text", "component": "text", "search": "text",
    "sort": "choice", "order": "choice", "offset": "number", "limit": "number", "dry_run": "choice",
    "unusable": "choice", "prompt_id": "name",
    "partial": "choice", "beside": "choice",
    "disk_budget_bytes": "number", "prompt": "workflow", "workflow": "workflow",
}  # fmt: skip


def test_the_request_handler_alone_sees_requests() -> None:
    """And of them no address, no cookie and no file."""
    uses = {
        ast.unparse(node)
        for node in ast.walk(ast.parse((ROOT / REQUEST_HANDLER).read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert {use for use in uses if use.startswith("request.")} == {
        "request.headers", "request.content_type", "request.content_length", "request.content",
        "request.content.iter_any", "request.match_info", "request.query",
    }  # fmt: skip
    others = [name for name in ENTRANCES if name != REQUEST_HANDLER]
    register = re.compile(
        r"\.routes\.(get|post|put|delete|patch|route|static|view)\b|add_(route|get|post|static|subapp)"
    )
    assert [name for name in others if register.search((ROOT / name).read_text())] == []
    assert [name for name in others if "aiohttp" in (ROOT / name).read_text()] == []


def test_what_clients_may_send_names_no_file() -> None:
    from onegraph.host.page.routes import ROUTES

    sent = {name: field for route in ROUTES for name, field in route.request_model.model_fields.items()}
    assert sent.keys() == FIELDS.keys()
    for name, kind in FIELDS.items():
        limits = repr(sent[name].metadata)
        if kind == "id":
            assert re.search(r"pattern='\^\[0-9a-f\]\{\d+\}\$'", limits), name
        elif kind == "text":
            assert "MaxLen(max_length=200)" in limits, name
        elif kind == "name":  # of what is in a table
            assert "MaxLen(max_length=100)" in limits, name
        else:
            assert sent[name].annotation is not str, name
    for texts, entrance in (("state|model|component|search", "graphs"), ("prompt_id", "process")):
        used = re.compile(rf"fields\.({texts})\b")
        assert [name for name in ENTRANCES if used.search((ROOT / name).read_text())] == [f"host/page/{entrance}.py"]
