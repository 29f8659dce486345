"""A store baked once, on a read-only mount, used by processes of another user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.store.entries import bake, trust

from onegraph.graph_cache.store import Store

WORKER = 12345  # nobody's number

# Runs once as root, so that everything is imported, which another user may not read here. Then as that user.
SCRIPT = """
import json, os, sys, tempfile
from pathlib import Path
import torch
from support.models import toy
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.graphs.loaded_graph import LoadedGraph
from onegraph.runtime.policy import ANY_SPEED
from onegraph.runtime.obtain.registry import Registry

home, models, warm = map(Path, sys.argv[1:4])
torch.set_grad_enabled(False)

def ignore(progress):
    pass

def use(home, models, digest="0123456789ab", module=None):
    module, measured = module or toy.Toy(8), []
    engine = Registry(Store(home), policy=ANY_SPEED)
    graph = engine.obtain(toy.request(module, ModelSource(None, digest), neighbours=(models,)), "wait", ignore)
    if not isinstance(graph, LoadedGraph):
        return {"refused": graph.reason.code, "compiles": engine.counters.compiles}
    inputs = toy.inputs()
    eager = lambda *given: measured.append(1) or module(*given)
    output = graph.call(module, inputs, toy.sizes(*inputs), eager, engine.counters).output
    torch.testing.assert_close(output, module(*inputs))
    folder = str(graph.entry.folder)
    engine.close()
    return {"folder": folder, "measured": bool(measured), "compiles": engine.counters.compiles}

use(warm, models, "0123456789ab")
os.setgroups([])
os.setgid(%(worker)d)
os.setuid(%(worker)d)
try:
    (models / "fleet.graphs" / "x").touch()
    print(json.dumps("the mount can be written"))
except OSError:
    found = [use(home, models), use(home, models), use(home, models, "fedcba987654")]
    found.append(use(home, models, module=toy.Toy(heads=3)) if %(miss)r else None)
    print(json.dumps(found))
"""


@dataclass(frozen=True)
class Fleet:
    """A folder with checkpoints that all may read, with a baked store in it, and a folder that all may write.

    Attributes:
        public: the publisher's key.
    """

    models: Path
    open: Path
    compiled: Path
    public: str

    def run(self, home: Path, *read_only: Path, miss: bool = False) -> list[dict[str, Any]]:
        """Use the toy's graph twice for one model and once for another, as another user, with folders mounted so."""
        warm = shutil.copytree(self.compiled, self.open / "warm")
        script = SCRIPT % {"worker": WORKER, "miss": miss}
        mounts = " && ".join(f"mount --bind '{p}' '{p}' && mount -o remount,bind,ro '{p}'" for p in read_only)
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh", sys.executable, "-c", script,
             str(home), str(self.models), str(warm)],
            env={**os.environ, "TMPDIR": str(self.open), "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return found


@pytest.fixture
def fleet(compiled_store: Path) -> Iterator[Fleet]:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("only root mounts a folder read-only, and becomes another user")
    root = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own folder is closed to others
    try:
        root.chmod(0o755)
        (root / "models").mkdir()
        (root / "open").mkdir()
        (root / "open").chmod(0o1777)
        store = Store(Path(shutil.copytree(compiled_store, root / "baker")))
        public = bake(store, root / "models" / "fleet.graphs", *store.entries())
        shutil.rmtree(root / "baker")
        yield Fleet(root / "models", root / "open", compiled_store, public)
    finally:
        shutil.rmtree(root)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_workers_copy_what_they_use(fleet: Fleet) -> None:
    """Each into its own folder, where the first-use result goes too; the baked store stays as it is."""
    home = fleet.open / "home"
    trust(Store(home), fleet.public)
    for path in (home, *home.rglob("*")):
        os.chown(path, WORKER, WORKER)
    before = files(fleet.models)
    first, second, other = fleet.run(home, fleet.models)[:3]
    assert first["folder"].startswith(f"{home}/graphs/toy/")
    assert (first["measured"], first["compiles"]) == (True, 0)
    assert second == other == {**first, "measured": False}
    assert files(fleet.models) == before
    assert {path.name for path in Path(first["folder"]).iterdir()} >= {"publisher.json", "outcome.json"}
    assert not (Path(first["folder"]) / "signature.json").exists()


def test_nothing_need_be_kept(fleet: Fleet) -> None:
    """With a graph folder that is read-only too, and with the baked graphs in it: temporary files take what is used."""
    home = fleet.models / "home"
    (fleet.models / "fleet.graphs").rename(home)
    (fleet.models / "fleet.graphs").mkdir()
    trust(Store(home), fleet.public)
    (home / "trusted-publishers.json").chmod(0o644)
    before = files(fleet.models)
    first, second, other, missing = fleet.run(home, fleet.models, miss=True)
    assert first["folder"].startswith(f"{fleet.open}/onegraph-{WORKER}-")
    assert (first["measured"], first["compiles"]) == (True, 0)
    assert second == other == {**first, "measured": False}
    assert missing == {"refused": "not_saved", "compiles": 0}  # without a key
    assert files(fleet.models) == before


def test_an_unknown_publishers_graphs_are_not_used(fleet: Fleet) -> None:
    home = fleet.open / "home"
    trust(Store(home), 64 * "a")
    home.chmod(0o755)
    (home / "trusted-publishers.json").chmod(0o644)
    found = fleet.run(home, fleet.models, home)
    assert [use["refused"] for use in found[:3]] == 3 * ["not_saved"]
