"""The workflow that bakes graphs without a GPU: its scripts as they run there, and who sees the publisher's key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.fleet.stores import Publisher, Worker
from support.store.entries import key

from onegraph.cli import plans
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="the workflow's scripts are bash")


def script(name: str, *arguments: object, **environ: object) -> subprocess.CompletedProcess[str]:
    """Run a script of `.ci` with this Python's commands first on PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path} | {name: str(value) for name, value in environ.items()}
    return subprocess.run(
        [ROOT / ".ci" / name, *map(str, arguments)], env=env, capture_output=True, text=True, check=False
    )


def steps(jobs: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, step) for name, job in jobs.items() for step in job["steps"]]


def test_the_key_is_seen_where_nothing_compiles() -> None:
    text = (ROOT / ".github" / "workflows" / "graphs.yml").read_text()
    workflow = yaml.safe_load(text)
    jobs = workflow["jobs"]
    seen = [(name, step.get("run", "")) for name, step in steps(jobs) if "secrets.PUBLISHER_KEY }}" in str(step)]
    assert seen == [("publish", ".ci/push-graphs build/home-*.tar")]
    assert [name for name, step in steps(jobs) if "secrets." in str(step)] == ["ready", "publish"]
    assert jobs["bake"]["needs"] == "ready" and jobs["publish"]["needs"] == "bake"
    assert jobs["bake"]["if"] == "needs.ready.outputs.go == 'true'"  # without the secret, nothing is done
    assert {*workflow[True]} == {"schedule", "workflow_dispatch"}  # never for somebody's pull request; YAML's `on`
    assert workflow["permissions"] == {"contents": "read"}
    plan = plans.read(ROOT / "plans" / "gallery.toml")
    assert plan.absent is not None
    matrix = jobs["bake"]["strategy"]["matrix"]
    assert (matrix["target"], matrix["platform"]) == (plan.absent.architectures, plan.absent.platforms)


def test_a_bake_leaves_a_table_and_the_graph_folder(tmp_path: Path) -> None:
    """Also where a model cannot be had; what is wrong with the plan itself ends it."""
    (tmp_path / "main.py").touch()
    plan = tmp_path / "plan.toml"
    plan.write_text('[absent]\narchitectures = ["sm_86"]\n[[bake]]\nmodel = "none.safetensors"\n')
    alice = Publisher(Store(tmp_path / "home"))
    alice.make()
    (alice.store.home / "headers").mkdir()
    environ = {"ONEGRAPH_HOME": alice.store.home, "OUT": tmp_path, "PLAN": plan, "COMFYUI_PATH": tmp_path}
    done = script("bake-graphs", "sm_86", "linux", **environ)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "table-sm_86-linux.json").read_text())["graphs"]
    assert (row["event"], row["model"]) == ("failed", "none.safetensors")
    packed = subprocess.run(
        ["tar", "-tf", tmp_path / "home-sm_86-linux.tar"], capture_output=True, text=True, check=True
    ).stdout
    assert packed.count("graph.aoti") == 1 and "headers" not in packed
    plan.write_text("?")
    assert script("bake-graphs", "sm_86", "linux", **environ).returncode != 0


def test_what_was_baked_is_pushed_under_the_secret_key(tmp_path: Path) -> None:
    """Two graph folders with keys of their own, as two jobs have, and not with the key that one of them brings."""
    url = f"file://{tmp_path / 'remote'}"
    publisher = Publisher(Store(tmp_path / "publisher"))
    for number in range(2):
        job = Publisher(Store(tmp_path / f"home-{number}"))
        job.make(key(architecture=f"{number}"))
        assert job.private != publisher.private  # which makes a publisher.key there, too
        subprocess.run(["tar", "-C", job.store.home, "-cf", tmp_path / f"home-{number}.tar", "."], check=True)
    archives = sorted(tmp_path.glob("home-*.tar"))
    done = script("push-graphs", *archives, STORE=url, PUBLISHER_KEY=publisher.private.hex(), TMPDIR=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert [path.name for path in (tmp_path / "remote" / "records").iterdir()] == [publisher.public]
    worker = Worker.at(tmp_path / "worker", url, trusts=[publisher])
    for number in range(2):
        assert isinstance(worker.fetch(key(architecture=f"{number}")), Taken)
    assert not list(tmp_path.glob("tmp.*"))  # where the key was
    assert publisher.private.hex() not in done.stdout + done.stderr
    short = script("push-graphs", *archives, STORE=url, PUBLISHER_KEY="ab", TMPDIR=tmp_path)
    assert short.returncode != 0 and "64 hex digits" in short.stderr
