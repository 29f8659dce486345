"""Rules of the whole pack: a light root, and dependencies that point one way."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def may_import() -> dict[str, set[str]]:
    """Package -> the packages it may import, itself included: the table of CONTRIBUTING.md."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Where things go")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]
    rows = [row for row in rows if len(row) == 4]
    return {row[0].strip("`"): {row[0].strip("`"), *re.findall(r"`(\w+)`", row[3])} for row in rows}


MAY_IMPORT = may_import()
PACKAGES = tuple(sorted(path.parent.name for path in ROOT.glob("*/__init__.py")))
# What alone uses private names of torch, each by `torch_private.require`.
INDUCTOR = {
    "common/torch_private.py",
    "common/torch_guards.py",
    *(path.relative_to(ROOT).as_posix() for path in (ROOT / "backends" / "inductor").glob("*.py")),
}
SOURCES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))


LONGEST = 350  # lines of a module


def imports(path: Path) -> set[str]:
    """Dotted names a file imports; relative ones start with the package they reach."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = path.relative_to(ROOT).parent.parts
            prefix = ["onegraph", *base[: len(base) - node.level + 1]] if node.level else []
            found.add(".".join([*prefix, *([node.module] if node.module else [])]))
            if node.level and node.module is None:
                found |= {".".join([*prefix, alias.name]) for alias in node.names}
    return found


def test_importing_the_root_imports_nothing_heavy() -> None:
    script = "import sys, onegraph; print(sorted({'torch', 'pydantic', 'comfy', 'numpy', 'typer'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_root_has_no_node_class_mappings() -> None:
    """ComfyUI ignores comfy_entrypoint when they are there."""
    assert "NODE_CLASS_MAPPINGS =" not in (ROOT / "__init__.py").read_text()


HOST_MODULES = ("comfy", "comfy_extras", "comfy_execution", "server", "folder_paths", "execution", "latent_preview")
ITS_NODES = "host/comfyui/comfyui_nodes.py"  # alone imports ComfyUI's own module `nodes`


def test_the_table_of_packages_is_complete_and_one_way() -> None:
    assert sorted(MAY_IMPORT) == sorted(PACKAGES)
    above: set[str] = set()
    for package, allowed in MAY_IMPORT.items():
        above.add(package)
        assert allowed - {package} <= {*PACKAGES} - above, package


def test_every_module_is_short_enough_to_be_read_at_once() -> None:
    modules = [*SOURCES, *(path for folder in ("tools", "benchmarks") for path in (ROOT / folder).rglob("*.py"))]
    lines = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in modules}
    assert {path: count for path, count in lines.items() if count > LONGEST} == {}


def test_every_package_is_installed() -> None:
    listed = re.findall(r'^    "onegraph\.?([\w.]*)",$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    folders = {path.parent.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")}
    assert {name.replace(".", "/") for name in listed if name} == {folder.as_posix() for folder in folders}


def crossings(path: Path) -> Iterator[str]:
    """What a file imports from where its package may not."""
    package = path.relative_to(ROOT).parts[0]
    for name in imports(path):
        parts = name.split(".")
        private = parts[0] == "torch" and any(part.startswith("_") for part in parts)
        if (
            (parts[0] == "onegraph" and len(parts) > 1 and parts[1] not in MAY_IMPORT[package])
            or (parts[0] in HOST_MODULES and package != "host")
            or (parts[0] == "nodes" and path.relative_to(ROOT).as_posix() != ITS_NODES)
            or (parts[0] == "comfy_api" and package not in ("host", "nodes"))
            or (parts[0] == "torch" and package == "graph_cache")
            or (private and path.relative_to(ROOT).as_posix() not in INDUCTOR)
            or (parts[0] == "oneflow" and "oneflow" not in path.parts)
        ):
            yield f"{path.relative_to(ROOT)}: {name}"


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        ("", {"crash", "disk", "sources", "trust"}),
        ("trust", set()),
        ("crash", {"trust"}),
        ("disk", {"trust", "crash"}),
        ("sources", {"trust", "crash", "disk"}),
    ],
)
def test_folders_of_the_store_point_one_way(folder: str, allowed: set[str]) -> None:
    paths = list((ROOT / "graph_cache" / folder).glob("*.py"))
    assert paths
    for path in paths:
        reached = {name.split(".")[2] for name in imports(path) if name.startswith("onegraph.graph_cache.")}
        assert reached & {"trust", "crash", "disk", "sources"} <= {folder, *allowed}, path


def test_dependencies_point_one_way() -> None:
    found = [crossing for path in SOURCES for crossing in crossings(path)]
    assert not found, "\n".join(found)


def test_only_the_inductor_backend_uses_private_torch() -> None:
    others = {path.relative_to(ROOT).as_posix(): path.read_text() for path in SOURCES}
    private = re.compile(r"torch\.(?:\w+\.)*_[a-zA-Z]\w*")
    found = [
        f"{path}: {name}" for path, text in others.items() if path not in INDUCTOR for name in private.findall(text)
    ]
    assert not found, "\n".join(found)


def test_requirements_leave_the_hosts_packages_alone() -> None:
    lines = [line.partition("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
    names = {line.split(">")[0].split("=")[0].strip().lower() for line in lines if line}
    assert names == {"blake3", "platformdirs", "pydantic", "rich", "typer"}
