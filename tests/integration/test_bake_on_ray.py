"""A plan on a Ray cluster of two nodes, of which a worker and the driver are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from headless.standstill import PATIENCE, wait_until
from support.fleet.stores import Publisher

from onegraph.graph_cache.sources.transport import STORES
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import trust_list
from onegraph.graph_cache.trust.publishers import Publishers

pytestmark = pytest.mark.full
TESTS = Path(__file__).parents[1]
GRAPHS = 12
OPEN = 4  # so many tasks do not wait at the gate, whichever Ray runs first
# One that uses the graphs: each toy in one process, which is not to compile any.
USE = """
import sys
from support.fleet import bakes

for number in range(int(sys.argv[1])):
    bakes.toy(number, sys.argv[2])
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one core each."""
    utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))  # of the workers, which call what the plan names
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        made = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        made.add_node(num_cpus=1)
        made.wait_for_nodes()
        yield made
        made.shutdown()


@pytest.fixture
def alice(tmp_path: Path) -> Publisher:
    return Publisher(Store(tmp_path / "alice"))


def write_plan(folder: Path, log: Path, gate: Path) -> Path:
    calls = [{"number": number, "log": str(log), "gate": str(gate), "first": OPEN} for number in range(GRAPHS)]
    arguments = ", ".join(
        "{" + ", ".join(f"{name} = {json.dumps(value)}" for name, value in call.items()) + "}" for call in calls
    )
    path = folder / "plan.toml"
    path.write_text(
        f"""
store = "file://{folder}/remote"

[[target]]
name = "small"
cpus = 1

[[bake]]
call = "support.fleet.bakes:toy"
arguments = [{arguments}]
"""
    )
    return path


def driver(alice: Publisher, plan: Path, address: str, *options: str) -> subprocess.Popen[str]:
    """Start `onegraph bake` in a process of its own."""
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("onegraph")), "bake", str(plan), "--on", address, "--json", *options],
        env={**os.environ, "ONEGRAPH_HOME": str(alice.store.home), "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for(what: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    """Wait for something that a driver brings about."""

    def holds() -> bool:
        assert running.poll() is None, running.communicate()
        return what()

    wait_until(holds, pause=0.2)


def lines(log: Path, word: str) -> Counter[int]:
    """By graph, how often it was begun or compiled."""
    text = log.read_text() if log.exists() else ""
    return Counter(int(number) for did, number in map(str.split, text.splitlines()) if did == word)


def tasks() -> list[psutil.Process]:
    """The processes that tasks run in, which Ray's workers started."""
    return [
        one for one in psutil.process_iter(["cmdline"]) if "onegraph.cli.bake_task" in (one.info["cmdline"] or ())
    ]  # fmt: skip


def result(process: subprocess.Popen[str]) -> tuple[int, Counter[str]]:
    """A driver's exit status, and how many tasks ended how."""
    out, err = process.communicate(timeout=PATIENCE)
    assert out, err
    return process.returncode, Counter(task["did"] for task in json.loads(out)["tasks"])


def test_each_graph_is_compiled_once_whoever_is_killed(cluster: Any, alice: Publisher, tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    plan = write_plan(tmp_path, log, gate)
    first = driver(alice, plan, cluster.address)
    notes = tmp_path / "remote" / "bakes"
    wait_for(lambda: len([*notes.rglob("*.json")]) == OPEN and len(tasks()) == 2, first)

    began = lines(log, "begun")
    victim = tasks()[0]
    victim.parent().kill()  # Ray's worker, not the driver
    wait_for(lambda: lines(log, "begun").total() > began.total() and len(tasks()) == 2, first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    wait_until(lambda: not tasks())
    assert {*lines(log, "compiled").values()} == {1} and lines(log, "compiled").total() == OPEN

    assert result(driver(alice, plan, cluster.address, "--dry-run")) == (0, Counter(hit=OPEN, missing=GRAPHS - OPEN))
    gate.touch()
    assert result(driver(alice, plan, cluster.address)) == (0, Counter(hit=OPEN, baked=GRAPHS - OPEN))
    assert lines(log, "compiled") == Counter(range(GRAPHS))
    assert result(driver(alice, plan, cluster.address)) == (0, Counter(hit=GRAPHS))

    home = tmp_path / "worker"
    assert trust_list.add(Publishers(home), "studio", alice.public) is None
    used = tmp_path / "used"
    subprocess.run(
        [sys.executable, "-c", USE, str(GRAPHS), str(used)], check=True,
        env={**os.environ, "ONEGRAPH_HOME": str(home), STORES: f"file://{tmp_path}/remote", "PYTHONPATH": str(TESTS)},
    )  # fmt: skip
    assert (lines(used, "begun"), lines(used, "compiled")) == (Counter(range(GRAPHS)), Counter())
