"""ComfyUI's real front end, served by a real server, in a real Chromium: one of each for the layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from headless import host, models, server, workflows
from support.comfyui import installation
from support.comfyui.installation import CHECKPOINT, Installation
from support.comfyui.shared_graphs import SharedGraphs
from support.page import browser as browsers
from support.page import graphs
from support.page.browser import Front

from onegraph.graph_cache.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NEVER_COMPILED = "tiny_sd15.safetensors"
VUE = "Comfy.VueNodes.Enabled"
SETTINGS = {"Comfy.TutorialCompleted": True, "Comfy.Locale": "en", VUE: False}
# What the page shows each time that it hears of a badge.
SEEN = """
window.seen = [];
window.comfyAPI.api.api.addEventListener('onegraph.badge', () => setTimeout(() => {
  const ours = app.rootGraph.nodes.flatMap((node) => node.badges).filter((one) => one.onegraph);
  const badge = ours.map((one) => one().text).filter((text) => text).join();
  const drawn = [...document.querySelectorAll('[data-node-id]')].map((one) => one.innerText).join(' ');
  const now = document.querySelector('.og-now')?.innerText ?? '';
  window.seen.push({badge, drawn, now});
}, 300));
"""
# A compile is on the badge, which Nodes 2.0 draws, and on the tab.
COMPILING = """() => window.seen.some(({badge, drawn, now}) =>
  badge.startsWith('compiling') && drawn.includes(badge) && now.includes('Compile Model') && now.includes(badge))"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", metavar="FOLDER", help="write pictures of the page there, such as docs/pictures")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes pictures where nobody asks for them."""
    if config.getoption("--pictures", None) is None:
        left_out = [item for item in items if item.path.name == "test_pictures.py"]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if why := browsers.missing():
        pytest.skip(why)
    from playwright.sync_api import expect

    expect.set_options(timeout=browsers.PATIENCE)
    with browsers.launched() as launched:
        yield launched


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, shared_graphs: SharedGraphs) -> Installation:
    """ComfyUI with two small checkpoints, one of which has a graph."""
    folder = tmp_path_factory.mktemp("comfyui")
    base = installation.write_base(folder, {CHECKPOINT: ("tiny_sdxl", 1), NEVER_COMPILED: ("tiny_sd15", 1)})
    return installation.with_graphs(base, tmp_path_factory.mktemp("home"), shared_graphs)


@pytest.fixture(scope="session")
def checkpoints(installed: Installation) -> Path:
    return installed.checkpoints


@pytest.fixture(scope="session")
def store(installed: Installation) -> Store:
    """The user's store, with graphs in it to look at."""
    made = Store(installed.home)
    graphs.fill(made, installed.checkpoints)
    return made


@pytest.fixture(scope="session")
def running(browser: Browser, installed: Installation, store: Store) -> Iterator[server.Server]:
    with server.running(installed.base, host.comfyui_path(), env=installed.environment) as started:
        started.post("/settings", SETTINGS)
        yield started


@pytest.fixture(scope="session")
def opened(browser: Browser, running: server.Server) -> Iterator[Front]:
    """The page that most tests share: opening one takes seconds."""
    front = Front(browser, running.port).open()
    yield front
    front.close()


@pytest.fixture
def front(opened: Front) -> Iterator[Front]:
    """The shared page as it was when it was opened, with the tab, and no error in it at the end."""
    opened.errors.clear()
    for name, value in SETTINGS.items():
        opened.set(name, value)
    opened.page.set_viewport_size({"width": 1280, "height": 800})
    opened.show_tab()
    yield opened
    opened.evaluate("() => document.querySelectorAll('dialog[open]').forEach((one) => one.close())")
    assert opened.errors == []


def txt2img(seed: int = 1, side: int = 128, checkpoint: str = CHECKPOINT, **node: Any) -> workflows.Prompt:
    """tests/workflows/txt2img on a tiny checkpoint; `node` are inputs of Compile Model (OneGraph)."""
    width = models.config(checkpoint.partition(".")[0])["context_dim"]
    prompt = workflows.without_text_encoder(workflows.load("txt2img"), width)
    prompt = workflows.with_inputs(prompt, "CheckpointLoaderSimple", ckpt_name=checkpoint)
    prompt = workflows.with_inputs(prompt, "EmptyLatentImage", width=side, height=side, batch_size=1)
    prompt = workflows.with_inputs(prompt, "KSampler", seed=seed, steps=2, cfg=1.0)
    return workflows.with_inputs(prompt, "OneGraphCompileModel", **node) if node else prompt


def compiling(side: int) -> workflows.Prompt:
    """A workflow that compiles a graph of one size, which no other serves."""
    return txt2img(side=side, checkpoint=NEVER_COMPILED, shapes="exact", when_missing="wait", backend="inductor")
