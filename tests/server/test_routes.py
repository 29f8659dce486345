"""Each route of a real server, and what it does to those who should not use it. One server for all."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headless import host, server, workflows
from support.comfyui.installation import Installation, with_graphs
from support.comfyui.shared_graphs import SharedGraphs
from support.processes.listener import Listener, listening
from support.store.entries import key, new_entry, publish, quarantine

from onegraph.graph_cache.disk.report import STATES

from .conftest import CHECKPOINT, node_of, txt2img, write_base

MARKUP = "<img src=x onerror=alert(1)>"
MANY = [400, pytest.param(5000, marks=pytest.mark.full)]
STEM = CHECKPOINT.removesuffix(".safetensors")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, shared_graphs: SharedGraphs) -> Installation:
    """A base directory of its own, since graphs are removed here; extra model folders, too."""
    base = write_base(tmp_path_factory.mktemp("routes"))
    extra = base / "elsewhere/below"
    extra.mkdir(parents=True)
    (extra / "extra.safetensors").write_bytes(b"not read by anybody")
    (base / "extra.yaml").write_text(f"other:\n    base_path: {base}\n    checkpoints: elsewhere\n")
    return with_graphs(base, tmp_path_factory.mktemp("routes-home"), shared_graphs)


@pytest.fixture(scope="module")
def home(installed: Installation) -> Path:
    return installed.home


@pytest.fixture(scope="module")
def models(installed: Installation) -> Path:
    return installed.base


@pytest.fixture(scope="module")
def running(installed: Installation, models: Path) -> Iterator[server.Server]:
    """The server, which restores the first checkpoint's graphs when it starts."""
    (models / "warm.txt").write_text(f"# what is asked for first\n\n{CHECKPOINT}\n")
    env = {**installed.environment, "ONEGRAPH_WARM_UP": str(models / "warm.txt")}
    options = ("--extra-model-paths-config", str(models / "extra.yaml"))
    with server.running(models, host.comfyui_path(), env=env, options=options) as process:
        yield process


@pytest.fixture
def page(running: server.Server) -> Iterator[Listener]:
    with listening(running.port) as listener:
        yield listener


def ask(
    running: server.Server, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Send what a client can send, whatever it is; status and JSON, or text."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=120)
    sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    base = {"Content-Type": "application/json"} if method == "POST" else {}
    try:
        connection.request(method, f"/onegraph/{path}", sent, {**base, **(headers or {})})
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, json.loads(text) if "json" in (answer.getheader("Content-Type") or "") else text
    finally:
        connection.close()


def get(running: server.Server, path: str) -> Any:
    status, found = ask(running, "GET", path)
    assert status == 200, found
    return found


def post(running: server.Server, path: str, body: Any = None) -> Any:
    status, found = ask(running, "POST", path, body or {})
    assert status == 200, found
    return found


def metric(running: server.Server, name: str) -> float:
    lines = [line for line in get(running, "metrics").splitlines() if line.startswith(f"onegraph_{name}")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def store_of(home: Path) -> Any:
    from onegraph.graph_cache.store import Store

    return Store(home)


def add(home: Path, number: int, label: str = "any size 512-2048") -> Path:
    """Publish a small entry in the user's folder, of a model that nobody has; its folder."""
    from onegraph.common.installed import torch_version
    from onegraph.graph_cache.model_hash import ModelSource

    wanted = key(architecture=f"{number:064x}", target={"device": "cpu", "torch": torch_version()})
    source = ModelSource(None, f"{number:012x}")
    store = store_of(home)
    entry = publish(store, source, wanted, new=new_entry(label))
    store.note_use(entry, "compiled", source)
    (entry.folder / ".uses").unlink()  # when it was made tells when it was used
    return entry.folder


def found_in(running: server.Server, number: int) -> dict[str, Any]:
    (entry,) = get(running, f"graphs?search={number:012x}")["entries"]
    return dict(entry)


# Reading ----------------------------------------------------------------------------------------------------


def test_the_warm_up_list_is_restored_before_anybody_asks(running: server.Server) -> None:
    until = time.monotonic() + 300
    while ask(running, "GET", "ready")[0] != 200:
        assert time.monotonic() < until, ask(running, "GET", "ready")
        time.sleep(0.2)
    assert get(running, "ready") == {"ready": True, "waiting_for": []}
    status = running.status()
    (graphs,) = {get(running, f"graphs?model={STEM}")["total"]}
    assert graphs and (status["restores"], status["compiles"]) == (graphs, 0)
    assert metric(running, "restore_seconds_count") == graphs


def test_a_run_is_on_the_badge_and_in_the_list(running: server.Server, page: Listener) -> None:
    prompt = txt2img(seed=5, when_missing="wait")
    before = running.status()
    outcome = running.run(prompt)
    assert outcome.status == "success", outcome.error
    assert (running.status()["restores"], running.status()["compiles"]) == (before["restores"], 0)
    (told,) = (one for one in get(running, "badges")["badges"] if one["node"] == node_of(prompt))
    badge = told["badge"]
    assert badge["calls"] == 3 and badge["eager_calls"] == 0 and badge["reasons"] == [], badge
    assert badge["state"] in ("restored", "compiled") and badge["progress"] is None
    event = page.wait("onegraph.badge", lambda data: data["badge"]["calls"] == 3)
    assert event == told
    (entry,) = get(running, f"graphs?model={STEM}&component=unet")["entries"]
    assert entry["in_use"] and entry["state"] == "signed" and entry["restores"] >= 1 and entry["restore_seconds"] > 0


def test_an_eager_run_says_why(running: server.Server, page: Listener) -> None:
    prompt = txt2img(seed=6, width=64, height=192, shapes="exact", when_missing="eager")
    assert running.run(prompt).status == "success"
    data = page.wait("onegraph.badge", lambda data: data["badge"]["state"] == "eager")
    assert data["node"] == node_of(prompt)
    (why,) = data["badge"]["reasons"]
    assert (why["code"], why["calls"], why["remedy"]) == ("no_graph", 3, "wait_or_bake")
    assert metric(running, 'eager_calls_total{code="no_graph"}') == 3
    assert metric(running, 'misses_total{code="no_graph"}') >= 1


def test_models_by_their_graphs(running: server.Server, models: Path) -> None:
    found = {(one["folder"], one["name"]): one for one in get(running, "models")["models"]}
    first = found["checkpoints", CHECKPOINT]
    assert (first["state"], first["graphs"] > 0, first["last_used"] is not None) == ("ready", True, True)
    assert first["bytes"] == sum(one["bytes"] for one in get(running, f"graphs?model={STEM}")["entries"])
    extra = found["checkpoints", str(Path("below", "extra.safetensors"))]
    assert (extra["state"], extra["graphs"], extra["last_used"]) == ("would_compile", 0, None)
    assert str(models) not in json.dumps(list(found.values()))


def test_one_graph_in_detail(running: server.Server, home: Path) -> None:
    folder = add(home, 1, MARKUP)
    entry = found_in(running, 1)
    assert (entry["shapes"], entry["state"], entry["pinned"], entry["restores"]) == (MARKUP, "signed", False, 0)
    found = get(running, f"graphs/{entry['id']}")
    assert found["entry"] == entry
    assert found["details"]["key"]["architecture"] == f"{1:064x}" and found["details"]["key"]["target.device"] == "cpu"
    names = {one["name"]: one["bytes"] for one in found["details"]["files"]}
    assert names["graph.aoti"] == 4 and names.keys() == {path.name for path in folder.iterdir()}
    assert found["details"]["remedy"] is None
    assert str(home) not in json.dumps(found)
    quarantine(store_of(home), folder)
    (entry,) = get(running, f"graphs?state=quarantined&search={1:012x}")["entries"]
    assert get(running, f"graphs/{entry['id']}")["details"]["remedy"]
    assert post(running, f"graphs/{entry['id']}/pin")["code"] == "quarantined"
    assert post(running, f"graphs/{entry['id']}/delete")["done"]


# Changing ---------------------------------------------------------------------------------------------------


def test_a_graph_is_checked_pinned_and_deleted(running: server.Server, home: Path, page: Listener) -> None:
    folder = add(home, 2)
    name = found_in(running, 2)["id"]
    assert post(running, f"graphs/{name}/verify")["code"] == "sound"
    assert post(running, f"graphs/{name}/pin")["entry"]["pinned"] is True
    page.wait("onegraph.graphs", lambda data: bool(data["revision"]))
    assert found_in(running, 2)["pinned"] is True
    assert post(running, f"graphs/{name}/unpin")["entry"]["pinned"] is False
    assert post(running, f"graphs/{name}/retry")["code"] == "nothing_failed"
    (folder / "graph.aoti").write_bytes(b"evil")
    checked = post(running, f"graphs/{name}/verify")
    assert (checked["done"], checked["code"]) == (False, "digest_differs")
    deleted = post(running, f"graphs/{name}/delete")
    assert (deleted["done"], deleted["code"], deleted["entry"]) == (True, "removed", None)
    assert not folder.exists() and ask(running, "GET", f"graphs/{name}")[0] == 404
    for action in ("verify", "pin", "unpin", "delete", "retry"):
        status, found = ask(running, "POST", f"graphs/{name}/{action}", {})
        assert (status, found["code"]) == (404, "unknown_graph")


def test_a_state_that_no_graph_has_is_refused(running: server.Server) -> None:
    status, found = ask(running, "GET", "graphs?state=foo")
    assert (status, found["code"]) == (400, "unknown_state")
    assert found["error"].startswith("No graph has such a state. States are signed, stale, quarantined, pinned,")
    for state in ("*", "sign*", "from somebody", *STATES):
        assert ask(running, "GET", f"graphs?state={urllib.parse.quote(state)}&limit=0")[0] == 200


def test_a_graph_that_ran_is_deleted_once_nothing_runs(running: server.Server) -> None:
    """While a prompt runs or waits it stays. What was closed is restored from another copy, or not at all."""
    assert running.run(txt2img(seed=8)).status == "success"
    (entry,) = get(running, f"graphs?model={STEM}&component=unet")["entries"]
    assert entry["in_use"]
    long = workflows.with_inputs(txt2img(seed=9), "KSampler", steps=5000)
    running.post("/prompt", {"prompt": long, "client_id": "somebody"})
    kept = post(running, f"graphs/{entry['id']}/delete")
    assert (kept["done"], kept["code"], kept["entry"]["id"]) == (False, "used", entry["id"])
    until = time.monotonic() + 60
    while (queue := running.get("/queue"))["queue_running"] or queue["queue_pending"]:
        running.post("/interrupt", {})
        assert time.monotonic() < until
        time.sleep(0.1)
    deleted = post(running, f"graphs/{entry['id']}/delete")
    assert (deleted["done"], deleted["code"], deleted["entry"]) == (True, "removed", None)
    assert not get(running, f"graphs?model={STEM}&component=unet")["entries"]
    assert running.run(txt2img(seed=10, when_missing="eager")).status == "success"
    (told,) = get(running, "badges")["badges"]
    assert told["badge"]["calls"] == 3 and {one["code"] for one in told["badge"]["reasons"]} <= {"no_graph"}


def test_the_budget_is_a_setting(running: server.Server, home: Path) -> None:
    default = 10 << 30
    assert get(running, "settings") == {"disk_budget_bytes": default, "disk_budget_from": "default"}
    old, new = add(home, 3), add(home, 4)
    os.utime(old / "manifest.json", (1e9, 1e9))
    for wrong in ({}, {"disk_budget_bytes": 0}, {"disk_budget_bytes": "1"}, {"disk_budget_bytes": 1.5}, {"x": 1}):
        assert ask(running, "POST", "settings", wrong)[0] == 400
    (used,) = {get(running, "graphs")["totals"]["bytes"]}
    changed = post(running, "settings", {"disk_budget_bytes": used - 1})
    assert changed == {"disk_budget_bytes": used - 1, "disk_budget_from": "setting"} == get(running, "settings")
    assert get(running, "graphs")["totals"]["budget_bytes"] == used - 1
    would = post(running, "prune", {"dry_run": True})
    assert [one["model"].rpartition("/")[2] for one in would["removed"]] == [f"{3:012x}"] and old.exists()
    assert ask(running, "POST", "prune", {})[0] == ask(running, "POST", "prune", {"dry_run": 0})[0] == 400
    done = post(running, "prune", {"dry_run": False})
    assert done["removed"] == would["removed"] and (done["before"], done["after"]) == (used, would["after"])
    assert not old.exists() and new.exists()
    assert post(running, "settings", {"disk_budget_bytes": None})["disk_budget_bytes"] is None
    assert "onegraph_budget_bytes +Inf" in get(running, "metrics")
    (home / "settings.json").write_text("no json")
    assert get(running, "settings") == {"disk_budget_bytes": default, "disk_budget_from": "default"}


# Baking -----------------------------------------------------------------------------------------------------


def ended(running: server.Server, job: str, seconds: float = 300) -> dict[str, Any]:
    until = time.monotonic() + seconds
    while (now := get(running, f"bake/{job}"))["state"] in ("waiting", "running"):
        assert time.monotonic() < until, now
        time.sleep(0.1)
    return dict(now)


def test_a_workflow_is_baked_here(running: server.Server, page: Listener, models: Path) -> None:
    prompt = txt2img(seed=7, when_missing="background")
    images = [*(models / "output").rglob("*.png")]
    job = post(running, "bake", {"prompt": prompt})["job"]
    now = ended(running, job)
    assert (now["state"], now["compiled"], now["done"], now["job"]) == ("done", 0, now["of"], job), now
    assert page.wait("onegraph.bake", lambda data: data["state"] == "done") == now
    assert page.of("onegraph.bake")[0]["text"] == "running the workflow"  # heard at once, whatever it comes to
    assert [*(models / "output").rglob("*.png")] == images
    report = running.status()["all_runs"][node_of(prompt)][-1]
    assert report["compiled_calls"] == 2 and not report["eager_codes"]


def test_what_cannot_be_baked(running: server.Server) -> None:
    plain = workflows.without_onegraph(txt2img(seed=8))
    for data in ({}, {"prompt": []}, {"prompt": {"nodes": []}}, {"prompt": {"1": {}}}, {"prompt": plain}):
        assert ask(running, "POST", "bake", data)[0] == 400, data
    wrong = workflows.with_inputs(txt2img(seed=8), "CheckpointLoaderSimple", ckpt_name="../../../etc/passwd")
    now = ended(running, post(running, "bake", {"prompt": wrong})["job"])
    assert now["state"] == "failed" and now["text"].startswith("ComfyUI refuses the workflow: ")
    assert ask(running, "GET", f"bake/{'0' * 32}")[0] == ask(running, "POST", "bake/x/cancel", {})[0] == 404


@pytest.mark.full
def test_a_job_is_cancelled_and_nothing_else(running: server.Server) -> None:
    """While somebody's own long workflow is on the queue."""
    long = workflows.with_inputs(workflows.without_onegraph(txt2img(seed=9)), "KSampler", steps=10_000)
    running.post("/prompt", {"prompt": long})
    try:
        jobs = [post(running, "bake", {"prompt": txt2img(seed=10)})["job"] for _ in range(2)]
        assert post(running, f"bake/{jobs[1]}/cancel")["state"] == "cancelled"
        until = time.monotonic() + 60
        while not running.get("/queue")["queue_pending"]:
            assert time.monotonic() < until
            time.sleep(0.05)
        post(running, f"bake/{jobs[0]}/cancel")
        assert ended(running, jobs[0])["state"] == "cancelled"
        queue = running.get("/queue")
        assert (len(queue["queue_running"]), queue["queue_pending"]) == (1, [])
    finally:
        running.post("/interrupt", {})
    job = post(running, "bake", {"prompt": txt2img(seed=11)})["job"]
    assert ended(running, job)["state"] == "done"


def badges(running: server.Server) -> dict[str, Any]:
    """The badge of each node."""
    return {one["node"]: one["badge"] for one in get(running, "badges")["badges"]}


@pytest.mark.full
def test_a_compile_shows_on_the_page_and_can_be_cancelled(running: server.Server, page: Listener, models: Path) -> None:
    prompt = txt2img(seed=12, width=192, height=128, shapes="exact")
    job = post(running, "bake", {"prompt": prompt})["job"]
    data = page.wait("onegraph.badge", lambda data: data["badge"]["state"] == "compiling")
    assert data["node"] == node_of(prompt) and 0 <= data["badge"]["progress"] < 1
    assert badges(running)[node_of(prompt)]["state"] == "compiling"
    post(running, f"bake/{job}/cancel")
    now = ended(running, job)
    assert (now["state"], now["compiled"]) == ("cancelled", 0)
    job = post(running, "bake", {"prompt": prompt})["job"]
    now = ended(running, job, 600)
    assert (now["state"], now["compiled"]) == ("done", 1), now
    shares = [d["badge"]["progress"] for d in page.of("onegraph.badge") if d["badge"]["state"] == "compiling"]
    assert len(shares) > 3 and max(shares) > 0.3
    assert badges(running)[node_of(prompt)]["state"] == "compiled"
    assert len([*models.glob("models/checkpoints/*.graphs/*/unet/*/manifest.json")]) == 2


# Who may not ------------------------------------------------------------------------------------------------

POSTS = ("prune", "settings", "bake", *(f"graphs/0123456789/{name}" for name in ("verify", "delete")))
FOREIGN = {
    "foreign Origin": {"Origin": "http://evil.example"},
    "no Origin": {"Origin": "null"},
    "foreign Host": {"Host": "evil.example"},
    "rebound Host": {"Host": "evil.example", "Origin": "http://evil.example"},
    "cross-site": {"Sec-Fetch-Site": "cross-site"},
    "same-site": {"Sec-Fetch-Site": "same-site"},
    "form": {"Content-Type": "application/x-www-form-urlencoded"},
    "text": {"Content-Type": "text/plain"},
    "packed": {"Content-Encoding": "gzip"},
}


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
def test_others_change_nothing(headers: dict[str, str], running: server.Server) -> None:
    for path in POSTS:
        status, _ = ask(running, "POST", path, {"dry_run": False}, headers)
        assert status == (415 if "Content-Type" in headers or "Content-Encoding" in headers else 403), path
    assert get(running, "settings")["disk_budget_from"] == "default"


def test_others_read_nothing(running: server.Server) -> None:
    for path in ("status", "graphs", "graphs/0123456789", "models", "settings", "badges", "metrics", "ready"):
        assert ask(running, "GET", path, headers={"Host": "evil.example"})[0] == 403, path


def test_ten_megabytes_are_refused_unread(running: server.Server) -> None:
    for path in ("settings", "bake", "prune"):
        status, found = ask(running, "POST", path, b" " * 10_000_000)
        assert (status, found["code"]) == (413, "request_too_large")


TRICKS = ["..", "%2e%2e", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "%2fetc%2fpasswd", "0123456789%00", "0123456789%0a"]


@pytest.mark.parametrize("trick", TRICKS)
def test_no_path_is_taken_from_a_client(trick: str, running: server.Server) -> None:
    assert ask(running, "GET", f"graphs/{trick}")[0] in (404, 405)
    assert ask(running, "POST", f"graphs/{trick}/delete", {})[0] in (404, 405)
    assert ask(running, "GET", f"graphs?folder={trick}")[0] == 400
    assert get(running, f"graphs?model={trick}&search={trick}")["entries"] == []


# Many -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", MANY)
def test_many_graphs(many: int, running: server.Server, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders are read again only when something in them has changed."""
    before = get(running, "graphs")["total"]
    entry = add(home, many)
    for number in range(many - 1):  # of one set of files, and of those that a list reads: writing takes the test long
        copy = home / "graphs" / f"unet-{many}" / f"copy-{number}"
        copy.mkdir(parents=True)
        for name in ("manifest.json", "signature.json"):
            os.link(entry / name, copy / name)
    try:
        look(running, before, many, capsys)
    finally:
        shutil.rmtree(home / "graphs" / f"unet-{many}")


def look(running: server.Server, before: int, many: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert get(running, "graphs?limit=0")["total"] == before + many
    scans = -1.0
    while scans != (scans := metric(running, "list_scans_total")):  # the last change is too young to trust the clock
        time.sleep(2.1)
    times = []
    offset = before + many - 100
    for sort in ("used", "bytes", "model", "state", "restores"):
        began = time.monotonic()
        found = get(running, f"graphs?sort={sort}&offset={offset}&limit=100")
        times.append(time.monotonic() - began)
        assert len(found["entries"]) == 100 and found["totals"]["graphs"] == before + many
    get(running, "models")
    assert metric(running, "list_scans_total") == scans
    with capsys.disabled():
        print(f" [{many} graphs: a page of the list in {max(times):.2f} s at most] ", end="")
    name = next(one["id"] for one in found["entries"] if one["shapes"] == "any size 512-2048")
    post(running, f"graphs/{name}/pin")
    assert get(running, f"graphs/{name}")["entry"]["pinned"] and metric(running, "list_scans_total") > scans
