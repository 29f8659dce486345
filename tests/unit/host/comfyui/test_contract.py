"""host/comfyui/contract.py and the families list all that the modules of host/ use of ComfyUI."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from onegraph.host import families
from onegraph.host.comfyui import contract

HOST = Path(__file__).parents[4] / "host"
MODULES = ("comfy", "comfy_execution", "comfyui_version", "folder_paths", "nodes", "server")
LISTED = {
    use.name
    for uses in (
        *contract.USES.values(),
        contract.MINIMAX,
        contract.WAN,
        contract.ACTIVATED,
        contract.FAST,
        contract.KANDINSKY,
        contract.PIXELDIT,
        contract.PLANNING,
        contract.PLANS,
        contract.PLAN_OPTION,
        contract.PREFERRED,
        contract.QUANTISED,
        contract.SEEDVR,
        contract.STREAMING,
        *(one.uses for one in families.registered()),
    )
    for use in uses
}


def dotted(node: ast.expr) -> list[str]:
    """`a.b.c` as a list; empty for anything that does not begin with a name or with ComfyUI's module of nodes."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if isinstance(node, ast.Call) and dotted(node.func) == ["comfyui_nodes"]:
        return ["nodes", *parts]
    return [node.id, *parts] if isinstance(node, ast.Name) else []


def used(source: str) -> set[str]:
    """Dotted names of ComfyUI's that a module imports, reads or asks for with getattr."""
    known = {"nodes": "nodes"}  # by host/comfyui/comfyui_nodes.py
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            ours = [alias for alias in node.names if alias.name.split(".")[0] in MODULES]
            known |= {a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in ours}
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in MODULES:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    found = {name for name in known.values() if "." in name}
    for node in ast.walk(ast.parse(source)):
        path: list[str] = []
        if isinstance(node, ast.Attribute):
            path = dotted(node)
        elif isinstance(node, ast.Call) and dotted(node.func) == ["getattr"] and isinstance(node.args[1], ast.Constant):
            path = [*dotted(node.args[0]), node.args[1].value]
        if path and path[0] in known:
            found.add(".".join([known[path[0]], *path[1:]]))
    return found


def is_listed(name: str) -> bool:
    """Whether a name, an attribute of it or what it is an attribute of is in the list."""
    name = name.replace("PromptServer.instance", "PromptServer")
    return any(f"{one}.".startswith(f"{name}.") or f"{name}.".startswith(f"{one}.") for one in LISTED)


@pytest.mark.parametrize("path", sorted(HOST.rglob("*.py")), ids=lambda path: path.relative_to(HOST).as_posix())
def test_what_a_module_uses_is_listed(path: Path) -> None:
    assert [name for name in sorted(used(path.read_text())) if not is_listed(name)] == []


def test_an_unlisted_use_is_found() -> None:
    source = (
        "import comfy.sd as sd\nimport comfy.utils\nfrom comfy.samplers import KSampler\n"
        "comfy.utils.other(sd.VAE)\ngetattr(sd, 'missing')\ncomfyui_nodes().Other()\n"
    )
    assert {name for name in used(source) if not is_listed(name)} == {
        "comfy.utils.other",
        "comfy.samplers.KSampler",
        "comfy.sd.missing",
        "nodes.Other",
    }
