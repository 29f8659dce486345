"""A new machine of a fleet: weights on its disk, no graph, and a store on the network that it may only read."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest
from headless import host, server
from support.comfyui import installation
from support.comfyui.shared_graphs import SharedGraphs
from support.fleet.servers import http_server
from support.fleet.stores import Publisher

from onegraph.graph_cache.sources import exporting
from onegraph.graph_cache.sources.transport import STORES
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import trust_list
from onegraph.graph_cache.trust.publishers import Publishers
from onegraph.host.page import warm_up

from .conftest import CHECKPOINT, node_of, txt2img


@dataclass(frozen=True)
class Fleet:
    """A store of one publisher.

    Attributes:
        folder: of the store's files.
        entries: how many graphs it holds.
    """

    folder: Path
    public: str
    entries: int

    def machine(self, folder: Path, url: str) -> tuple[Path, dict[str, str]]:
        """A new machine: its base directory, and the variables of its servers."""
        base = installation.write_base(folder / "comfyui", {CHECKPOINT: ("tiny_sdxl", 1)})
        home = folder / "home"
        assert trust_list.add(Publishers(home), "studio", self.public) is None
        return base, {**installation.environment_of(home), STORES: url}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, shared_graphs: SharedGraphs) -> Fleet:
    """One machine compiled what `txt2img()` needs, and pushed it."""
    folder = tmp_path_factory.mktemp("publisher")
    base = installation.write_base(folder, {CHECKPOINT: ("tiny_sdxl", 1)})
    made = installation.with_graphs(base, folder / "home", shared_graphs)
    publisher = Publisher(Store(made.home))
    entries = [*exporting.find(made.checkpoints)]
    (folder / "store").mkdir()
    assert publisher.push((folder / "store").as_uri(), *entries) == ["pushed"] * len(entries)
    return Fleet(folder / "store", publisher.public, len(entries))


def run(running: server.Server, seed: int) -> server.Outcome:
    """Run the workflow by graphs alone."""
    outcome = running.run(txt2img(seed=seed, when_missing="wait", backend="inductor"))
    assert outcome.status == "success", outcome.error
    (report,) = running.status()["runs"].values()
    assert report["compiled_calls"] > 0 and report["eager_calls"] == {}, report
    assert running.status()["compiles"] == 0
    return outcome


def metric(running: server.Server, name: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{running.port}/onegraph/metrics", timeout=30) as answer:
        text = answer.read().decode()
    (value,) = re.findall(rf"^onegraph_{name} (\d+)", text, re.MULTILINE)
    return int(value)


def test_a_new_server_compiles_nothing(fleet: Fleet, tmp_path: Path) -> None:
    """It fetches once, and needs the store no more: the next process runs without it."""
    with http_server(fleet.folder) as store:
        base, environ = fleet.machine(tmp_path, store.url)
        with server.running(base, host.comfyui_path(), env=environ) as running:
            prompt = txt2img(seed=1, when_missing="wait", backend="inductor")
            shown = run(running, 1).text(node_of(prompt))
            assert shown.startswith("restored in "), shown
            print(f"a new server: {shown.partition(',')[0]}; {len(store.asked)} requests, {store.sent:,} bytes")
            assert metric(running, "fetches_total") == fleet.entries
            asked = [*store.asked]
            assert len(asked) == len({*asked})
            run(running, 2)
            assert store.asked == asked
    with server.running(base, host.comfyui_path(), env=environ) as running:
        assert run(running, 3).text(node_of(prompt)).startswith("restored in ")
        assert metric(running, "fetches_total") == 0


def test_it_fetches_and_loads_before_it_is_ready(fleet: Fleet, tmp_path: Path) -> None:
    with http_server(fleet.folder) as store:
        base, environ = fleet.machine(tmp_path, store.url)
        (tmp_path / "list").write_text(f"{warm_up.ALL}\n")
        environ[warm_up.VARIABLE] = str(tmp_path / "list")
        with server.running(base, host.comfyui_path(), env=environ) as running:
            running.wait_warm()
            assert metric(running, "fetches_total") == fleet.entries
            asked = [*store.asked]
            run(running, 4)
            assert store.asked == asked
