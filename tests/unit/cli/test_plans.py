"""`onegraph bake PLAN.toml`: what a plan lists, and one of its tasks on this machine."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.fleet.stores import Publisher, Worker
from support.store.command import onegraph
from support.store.entries import key

from onegraph.backends.inductor.target import target
from onegraph.cli import bake_task, on_ray, plans
from onegraph.cli.bake_task import Baked
from onegraph.cli.ray_driver import FRAME
from onegraph.common import reasons
from onegraph.graph_cache.key import GraphKey
from onegraph.graph_cache.sources import pushing
from onegraph.graph_cache.sources.pushing import UnsignedGraph
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store

PROMPT = {
    "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a.safetensors"}},
    "2": {"class_type": "UNETLoader", "inputs": {"unet_name": "b.safetensors", "weight_dtype": "default"}},
}


def write(tmp_path: Path, text: str) -> Path:
    (tmp_path / "txt2img.json").write_text(json.dumps(PROMPT))
    path = tmp_path / "plan.toml"
    path.write_text(f'store = "{(tmp_path / "remote").as_uri()}"\n{text}')
    return path


def test_a_plan_is_every_combination(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
[[target]]
name = "a"
accelerator = "A100"
gpus = 1
memory_gb = 24

[[target]]
name = "b"

[[bake]]
workflow = "txt2img.json"
sizes = ["512x512", "1024x1024"]
models = ["x.safetensors", "y.safetensors"]
dtypes = ["default", "fp8_e4m3fn"]
targets = ["a"]

[[bake]]
call = "some.module:function"
arguments = [{ number = 1 }, { number = 2 }]
""",
    )
    items = plans.items(plans.read(path), path.parent)
    assert len(items) == 2 * 2 * 2 + 2 * 2
    first = items[0]
    assert (first.text, first.size, first.target.accelerator) == (
        "txt2img.json x.safetensors default 512x512 a", "512x512", "A100",
    )  # fmt: skip
    assert first.prompt is not None and first.prompt["1"]["inputs"]["ckpt_name"] == "x.safetensors"
    assert first.prompt["2"]["inputs"] == {"unet_name": "x.safetensors", "weight_dtype": "default"}
    assert [item.argument for item in items[8:]] == [{"number": 1}, {"number": 2}] * 2
    assert len({item.digest("1") for item in items}) == len(items)
    assert items[0].digest("1") != items[0].digest("2")  # another torch: another task


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "bake"),
        ("[[bake]]\n", "either a workflow, a call or a model"),
        ('[[bake]]\nworkflow = "txt2img.json"\ncall = "a:b"\n', "either a workflow, a call or a model"),
        ('[[bake]]\nworkflow = "txt2img.json"\nsizes = ["big"]\n', "not a size"),
        ('[[bake]]\ncall = "a:b"\ntargets = ["none"]\n', r"No \[\[target\]\]"),
        *(
            (f"[[bake]]\ncall = {json.dumps(call)}\n", "is no call; write it like package.module:function")
            for call in ("a b", "a", "a:", ":b", "a:b:c", "a..b:c", "a:b.c", "a:b\n", ".a:b", "-m:b")
        ),
        ("[[bake]\n", "no TOML"),
        ('[[bake]]\nworkflow = "plan.toml"\n', "no JSON"),
    ],
)
def test_what_is_no_plan(text: str, why: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(plans.PlanError, match=why):
        plans.items(plans.read(path), path.parent)


def item(function: str, **argument: object) -> plans.Item:
    return plans.Item(text=function, target=plans.Target(), call=f"support.fleet.bakes:{function}", argument=argument)


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.mark.usefixtures("importable")
def test_a_task_returns_unsigned_graphs_that_the_driver_signs(alice: Publisher, tmp_path: Path) -> None:
    url, log = (tmp_path / "remote").as_uri(), tmp_path / "log"
    pusher = alice.pusher(url)
    one = item("bytes_of", number=3, log=str(log))
    baked = bake_task.run(one, url, alice.public)
    assert baked.failed == "" and len(baked.graphs) == 1
    assert {*baked.graphs[0].files} == {"graph.aoti", "constants.json"}
    row = on_ray._published(one, baked, pusher)
    assert (row.did, len(row.keys), row.why) == ("baked", 1, "")
    worker = Worker.at(tmp_path / "home", url, trusts=[alice])
    assert isinstance(worker.fetch(key_of(3)), Taken)
    assert on_ray.split([one], alice.pusher(url)) == ([one], [])
    again = bake_task.run(one, url, alice.public)  # without the note it is found in the store
    assert (again.graphs, len(again.fetched)) == ((), 1)
    assert on_ray._published(one, again, pusher).did == "hit"
    assert log.read_text().splitlines() == ["begun 3", "compiled 3", "begun 3"]


@pytest.mark.usefixtures("importable")
def test_a_task_that_fails_says_why(alice: Publisher, tmp_path: Path) -> None:
    url = (tmp_path / "remote").as_uri()
    one = item("fails", why="no such model")
    row = on_ray._published(one, bake_task.run(one, url, alice.public), alice.pusher(url))
    assert (row.did, row.why) == ("failed", "it ended with code 1 and printed no such model")
    assert on_ray.split([one], alice.pusher(url)) == ([], [one])


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("call", ["no_such_module:f", "support.fleet.bakes:no_such_function"])
def test_a_call_that_a_machine_cannot_import_is_told(call: str, alice: Publisher, tmp_path: Path) -> None:
    baked = bake_task.run(plans.Item(text="", target=plans.Target(), call=call), tmp_path.as_uri(), alice.public)
    assert f"printed this machine cannot import {call}, which the plan calls (" in baked.failed


def test_what_a_task_returns_is_checked_before_it_is_signed(alice: Publisher, tmp_path: Path) -> None:
    made = alice.make()
    files = {name: (made.folder / name).read_bytes() for name in made.manifest.files}
    whole = UnsignedGraph(made.text, files)
    assert pushing.check_unsigned(whole, {}) == made.manifest
    for wrong, code in (
        (UnsignedGraph(b"{}", files), "unreadable_manifest"),
        (UnsignedGraph(made.text, {}), "missing_file"),
        (UnsignedGraph(made.text, {**files, "graph.aoti": b"evil"}), "digest_differs"),
        (UnsignedGraph(made.text, {**files, "graph.aoti": b"longer"}), "wrong_size"),
        (UnsignedGraph(made.text, {**files, "../evil": b""}), "unlisted_member"),
        (UnsignedGraph(made.text.replace(b'"unet"', b'"../.."'), files), "unreadable_manifest"),
    ):
        found = pushing.check_unsigned(wrong, {})
        assert isinstance(found, reasons.Reason) and found.code == code
        row = on_ray._published(item("a"), Baked((wrong,)), alice.pusher((tmp_path / "remote").as_uri()))
        assert row.did == "failed" and row.why.endswith("nothing of it is signed")
    assert not (tmp_path / "remote").exists()


def test_a_dry_run_needs_no_cluster(alice: Publisher, tmp_path: Path) -> None:
    path = write(tmp_path, '[[bake]]\ncall = "a:b"\narguments = [{ n = 1 }, { n = 2 }]\n')
    done = onegraph(alice.store, "bake", path, "--dry-run", "--json")
    assert done.exit_code == 0
    assert [task["did"] for task in json.loads(done.stdout)["tasks"]] == ["missing", "missing"]
    (one, _) = plans.items(plans.read(path), path.parent)
    on_ray._note_done(one, alice.pusher((tmp_path / "remote").as_uri()), ())
    done = onegraph(alice.store, "bake", path, "--dry-run")
    assert done.stdout.splitlines()[-1] == "1 hit, 1 missing"


def test_a_note_of_another_publisher_counts_for_nothing(alice: Publisher, tmp_path: Path) -> None:
    """Else whoever can write the store could have graphs left out."""
    url, one = (tmp_path / "remote").as_uri(), item("bytes_of", number=1)
    mallory = Publisher(Store(tmp_path / "mallory"))
    on_ray._note_done(one, mallory.pusher(url), ())
    theirs = next((tmp_path / "remote" / "bakes").glob("*/*.json"))
    hers = tmp_path / "remote" / "bakes" / alice.public / theirs.name
    hers.parent.mkdir()
    theirs.replace(hers)
    assert on_ray.split([one], alice.pusher(url)) == ([], [one])


def test_ray_is_named_where_it_is_missing(alice: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    path = write(tmp_path, '[[bake]]\ncall = "a:b"\n')
    done = onegraph(alice.store, "bake", path)
    assert done.exit_code == 1 and "pip install ray" in done.stderr


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_does_not_answer_is_said_at_once(alice: Publisher, tmp_path: Path, scheme: str) -> None:
    pytest.importorskip("ray")
    with socket.socket() as nobody:  # bound, and listens to nobody
        nobody.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{nobody.getsockname()[1]}"
        path = write(tmp_path, '[[bake]]\ncall = "support.fleet.bakes:fails"\n')
        done = onegraph(alice.store, "bake", path, "--on", address)
    said = f"Error: No Ray cluster answers at {address}. Start one with `ray start --head`, or leave out --on."
    assert (done.exit_code, done.output.splitlines()[0]) == (1, said)


# A cluster with one node, which takes over whoever unpickles what it returns.
RAY = """
import json, os, pickle
from types import SimpleNamespace

class RayError(Exception):
    pass

class Evil:
    def __reduce__(self):
        return exec, (TAKEN_OVER,)

TAKEN_OVER = 'import json, os; open(os.environ["TEST_TAKEN"], "w").write(json.dumps([os.getpid(), {**os.environ}]))'
exceptions = SimpleNamespace(RayError=RayError)

def is_initialized():
    return False

def init(**options):
    pass

def shutdown():
    pass

def remote(function):
    task = SimpleNamespace(remote=lambda *arguments: arguments)
    return SimpleNamespace(options=lambda **options: task)

def wait(running, num_returns):
    return running[:1], running[1:]

def get(arguments):
    pickle.loads(pickle.dumps(Evil()))
    return RETURNED
"""


def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch, returned: object) -> Path:
    """Put such a Ray in place of the one that is installed; the file that tells where its node's code ran."""
    (folder / "ray.py").write_text(f"{RAY}\nRETURNED = {returned!r}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("TEST_TAKEN", str(folder / "taken"))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    return folder / "taken"


def test_a_node_runs_no_code_where_the_key_is(
    alice: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = cluster(tmp_path, monkeypatch, b"garbage")
    monkeypatch.setenv("ONEGRAPH_SIGNING_KEY", str(tmp_path / "secret"))
    path = write(tmp_path, '[[bake]]\ncall = "a:b"\narguments = [{ n = 1 }, { n = 2 }]\n')
    done = onegraph(alice.store, "bake", path, "--json")
    process, environ = json.loads(taken.read_text())
    assert process != os.getpid() and "ray" not in sys.modules
    assert not {"ONEGRAPH_HOME", "ONEGRAPH_SIGNING_KEY"} & {*environ}
    assert str(alice.store.home) not in json.dumps(environ)
    assert [task["did"] for task in json.loads(done.stdout)["tasks"]] == ["failed", "failed"]


@pytest.mark.parametrize(
    "changed",
    [
        {"target": {"device": "cuda"}}, {"target": {"torch": "1.0"}}, {"target": {"platform": "plan9"}},
        {"component": "vae_decoder"}, {"component": "vae_decoder", "target": {"component": "unet"}},
        {"dtype": "int8"}, {"format": 1},
    ],
    ids=str,
)  # fmt: skip
def test_what_was_not_asked_for_is_not_signed(changed: dict[str, Any], alice: Publisher, tmp_path: Path) -> None:
    """And nothing else of what that node returned."""
    wanted = {"component": ["unet"], "backend": ["inductor"], "dtype": ["float32"]}
    one, own = item("bytes_of", number=1).model_copy(update={"expect": wanted}), key_of(0).target
    other = key_of(2, **{**changed, "target": own | changed.get("target", {})})
    url = (tmp_path / "remote").as_uri()
    row = on_ray._published(one, returned(alice, key_of(1), other), alice.pusher(url))
    assert (row.did, row.keys) == ("failed", []) and "where the plan asks for" in row.why
    assert not (tmp_path / "remote").exists()
    row = on_ray._published(one, returned(alice, key_of(1)), alice.pusher(url))
    assert (row.did, len(row.keys), row.why) == ("baked", 1, "")


def key_of(number: int, **changes: object) -> GraphKey:
    """The key of a graph as this machine makes them."""
    return key(**{"architecture": f"toy {number}", "target": target(torch.device("cpu")), **changes})


def returned(alice: Publisher, *keys: GraphKey) -> Baked:
    entries = [alice.make(wanted) for wanted in keys]
    return Baked(tuple(
        UnsignedGraph(one.text, {name: (one.folder / name).read_bytes() for name in one.manifest.files})
        for one in entries
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("expect", "device"), [({}, ["cuda"]), ({"device": ["cpu"]}, ["cpu"]), ({"component": ["unet"]}, ["cuda"])], ids=str
)
def test_what_a_plan_tells_of_its_graphs(expect: dict[str, list[str]], device: list[str]) -> None:
    h100 = plans.Target(accelerator="H100", gpus=1, expect={"machine": ["aarch64"]})
    one = item("bytes_of").model_copy(update={"target": h100, "expect": expect})
    assert one.expected() == {"device": device, "capability": ["9.0"], "machine": ["aarch64"]} | expect
    with_cpu = one.model_copy(update={"options": ("--cpu-vae",), "expect": {}})
    assert with_cpu.expected()["device"] == ["cuda", "cpu"]
    assert item("bytes_of").expected() == {"device": ["cpu"]}


def test_results_travel_as_plain_bytes(alice: Publisher) -> None:
    whole = Baked(returned(alice, key_of(1), key_of(2)).graphs, ("0" * 64,), "and it failed")
    data = whole.to_bytes()
    assert Baked.from_bytes(data) == whole
    much = data.replace(b'["00', b'["00","' + b'","'.join([b"0" * 64] * 1024))
    for wrong in (b"", b"{}", data[:-1], data + b"x", data.replace(b"manifest", b"manifesto", 1), b"[" * 9999, much):
        assert Baked.from_bytes(wrong) == Baked((), failed="it returned what no task returns")


@pytest.mark.parametrize(
    "written", [b"", b"x", FRAME.pack(7, 0), FRAME.pack(0, 3) + b"ab", FRAME.pack(0, 1 << 60), FRAME.pack(0, 0) * 2]
)  # fmt: skip
def test_a_driver_that_is_taken_over_ends_the_bake(written: bytes) -> None:
    out, left = io.BytesIO(written), {0: None}
    while left and (result := on_ray._result(out, left)) is not None:
        assert result[1].failed
        del left[result[0]]
    assert bool(left) == (written != FRAME.pack(0, 0) * 2)


@pytest.mark.usefixtures("importable")
def test_what_was_withdrawn_is_baked_again(alice: Publisher, tmp_path: Path) -> None:
    url = (tmp_path / "remote").as_uri()
    one = item("bytes_of", number=3, log=str(tmp_path / "log"))
    for key_name in (True, False):
        row = on_ray._published(one, bake_task.run(one, url, alice.public), alice.pusher(url))
        assert row.did == "baked" and on_ray.split([one], alice.pusher(url)) == ([one], [])
        found = bake_task.run(one, url, alice.public)  # who only finds the graph depends on it as well
        assert on_ray._published(one, found, alice.pusher(url)).did == "hit"
        (listed,) = (tmp_path / "remote" / "graphs").rglob("*.json")
        done = onegraph(alice.store, "withdraw", url, row.keys[0] if key_name else listed.stem[:16])
        assert done.exit_code == 0, done.output
        assert row.keys[0] in done.stdout and listed.stem[:12] in done.stdout
        assert on_ray.split([one], alice.pusher(url)) == ([], [one])
        worker = Worker.at(tmp_path / f"home{key_name}", url, trusts=[alice])
        assert not isinstance(worker.fetch(key_of(3)), Taken)
    assert onegraph(alice.store, "withdraw", url, row.keys[0]).exit_code == 1  # nothing is left by that name
