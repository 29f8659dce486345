"""A graph that another version of torch compiled: loaded, bound and run by this one, and what each is told of it.

The other version comes from the package index, unpacked into build/torch-OLDER (`make older-torch`): of torch's own
files alone, since the libraries of CUDA that it loads are here already.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import onegraph
from onegraph.graph_cache.entry import constants_of
from onegraph.graph_cache.store import Store
from onegraph.runtime.guards import code_guard

ROOT = Path(onegraph.__file__).parent
OLDER = ROOT / "build" / "torch-older"

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not OLDER.is_dir(), reason="needs another version of torch: make older-torch"),
]


def in_process(home: Path, what: str, older: bool) -> dict[str, object]:
    """Run a part of `support.models.travelling` with one of the versions; what it prints."""
    path = [*([str(OLDER)] if older else []), *(one for one in sys.path if one)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "ONEGRAPH_HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "support.models.travelling", what]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environ, check=True)
    told: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Graph folders, by whether the older version compiled what is in it."""
    homes = {older: tmp_path_factory.mktemp("home") for older in (True, False)}
    for older, home in homes.items():
        told = in_process(home, "make", older)
        assert (str(told["torch"]) == torch.__version__) is not older
    return homes


def test_a_newer_torch_runs_what_an_older_one_compiled(made: dict[bool, Path]) -> None:
    told = in_process(made[True], "run", older=False)
    assert told["torch"] == torch.__version__
    assert told["found"] == "Hit" and told["loaded"] == "Container"
    assert isinstance(told["far"], list) and len(told["far"]) == 3 and max(told["far"]) < 1e-6
    (entry,) = Store(made[True]).entries()
    assert constants_of(entry) and code_guard.difference(entry.manifest) is None


def test_an_older_torch_does_not_run_what_a_newer_one_compiled(made: dict[bool, Path]) -> None:
    told = in_process(made[False], "run", older=True)
    here = ".".join(torch.__version__.split(".")[:2])
    assert told["found"] == "Miss" and f"torch {here} or newer" in str(told["why"])
