"""Two servers of one user at once: what one of them changes, the other's routes tell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headless import host, server
from support.comfyui.installation import Installation, with_graphs
from support.comfyui.shared_graphs import SharedGraphs
from support.processes.listener import listening

from .conftest import node_of, txt2img, write_base

pytestmark = pytest.mark.full

Servers = tuple[server.Server, server.Server]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, shared_graphs: SharedGraphs) -> Installation:
    """A user and a base directory of their own, since graphs are removed here."""
    return with_graphs(write_base(tmp_path_factory.mktemp("two")), tmp_path_factory.mktemp("two-home"), shared_graphs)


@pytest.fixture(scope="module")
def servers(installed: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The second one has its own base directory, with the same model folders."""
    other: Path = server.prepare_base(tmp_path_factory.mktemp("other"))
    (other / "extra.yaml").write_text(f"first:\n    base_path: {installed.base}/models\n    checkpoints: checkpoints\n")
    options = ("--extra-model-paths-config", str(other / "extra.yaml"))
    with (
        server.running(installed.base, host.comfyui_path(), env=installed.environment) as first,
        server.running(other, host.comfyui_path(), env=installed.environment, options=options) as second,
    ):
        yield first, second


def test_settings_of_one_are_those_of_the_other(servers: Servers, installed: Installation) -> None:
    first, second = servers
    for number, (one, other) in enumerate(((first, second), (second, first), (first, second)), 1):
        one.post("/onegraph/settings", {"disk_budget_bytes": number << 30})
        expected = {"disk_budget_bytes": number << 30, "disk_budget_from": "setting"}
        assert other.get("/onegraph/settings") == one.get("/onegraph/settings") == expected
        assert other.get("/onegraph/graphs")["totals"]["budget_bytes"] == number << 30


def test_a_use_and_a_pin_are_seen_by_the_other(servers: Servers) -> None:
    first, second = servers
    (entry,) = second.get("/onegraph/graphs?component=unet")["entries"]
    assert (entry["restores"], entry["in_use"]) == (0, False)
    outcome = first.run(txt2img(seed=3, when_missing="eager"))
    assert outcome.status == "success", outcome.error
    (entry,) = second.get("/onegraph/graphs?component=unet")["entries"]
    assert (entry["restores"], entry["in_use"]) == (1, True)
    name = entry["id"]
    kept = second.post(f"/onegraph/graphs/{name}/delete", {})
    assert (kept["done"], kept["code"]) == (False, "used")
    assert first.post(f"/onegraph/graphs/{name}/pin", {})["done"]
    assert second.get(f"/onegraph/graphs/{name}")["entry"]["pinned"]
    second.post("/onegraph/settings", {"disk_budget_bytes": 1})
    assert first.post("/onegraph/prune", {"dry_run": False})["removed"] == []
    first.post("/onegraph/settings", {"disk_budget_bytes": None})


def test_events_are_of_the_own_server(servers: Servers) -> None:
    """A page hears of its own server's runs: ids of nodes are the same in both."""
    first, second = servers
    prompt = txt2img(seed=4, when_missing="eager")
    with listening(first.port) as ours, listening(second.port) as others:
        assert first.run(prompt).status == "success"
        event = ours.wait("onegraph.badge", lambda data: data["badge"]["calls"] == 3)
        assert event["node"] == node_of(prompt) and event["prompt_id"]
        (told,) = first.get("/onegraph/badges")["badges"]
        assert told.keys() == event.keys() and told["badge"]["calls"] == 3
        assert [told[name] for name in ("node", "prompt_id", "client_id")] == [
            node_of(prompt), event["prompt_id"], event["client_id"]
        ]  # fmt: skip
        assert event["client_id"]
        assert {*ours.of("onegraph.text")[-1]} == {"node", "prompt_id", "client_id", "text"}
        assert second.get("/onegraph/badges") == {"badges": []}
        assert others.of("onegraph.badge") == others.of("onegraph.text") == []


def test_a_server_that_dies_leaves_the_graph_to_the_other(servers: Servers) -> None:
    first, second = servers
    (entry,) = second.get("/onegraph/graphs?component=unet")["entries"]
    assert entry["in_use"]
    first.stop()
    (entry,) = second.get("/onegraph/graphs?component=unet")["entries"]
    assert not entry["in_use"]
    assert second.post(f"/onegraph/graphs/{entry['id']}/delete", {})["done"]
    assert second.get("/onegraph/graphs?component=unet")["total"] == 0
