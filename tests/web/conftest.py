"""ComfyUI's real front end, served by a real server, in a real Chromium: one of each for the layer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    from playwright.sync_api import Browser, Route

NEVER_COMPILED = "tiny_sd15.safetensors"
VUE = "Comfy.VueNodes.Enabled"
QUEUED = itertools.count()
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
    parser.addoption("--states", metavar="FOLDER", help="write pictures of the tab in all its states there")


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


def queue(front: Front) -> None:
    front.evaluate("() => void app.queuePrompt(0, 1)")


@pytest.fixture
def workflow(front: Front) -> workflows.Prompt:
    """A workflow with one node of the pack, open in the page."""
    prompt = txt2img(when_missing="wait", shapes="exact", backend="inductor")
    front.load(prompt)
    return prompt


@contextmanager
def queueing(front: Front) -> Iterator[Callable[[], str]]:
    """Queue the open workflow, which the server never gets to see; the id of its prompt."""

    def answer(route: Route) -> None:
        ids.append(f"prompt {next(QUEUED)}")
        route.fulfill(json={"prompt_id": ids[-1], "number": 1, "node_errors": {}})

    def queue_it() -> str:
        with front.page.expect_response("**/prompt"):
            queue(front)
        return ids[-1]

    ids: list[str] = []
    front.page.route("**/prompt", lambda route: answer(route) if route.request.method == "POST" else route.continue_())
    yield queue_it
    front.page.unroute("**/prompt")


@pytest.fixture
def queued(front: Front) -> Iterator[Callable[[], str]]:
    with queueing(front) as queue_it:
        yield queue_it


def tell(front: Front, event: str, **data: Any) -> None:
    """Have the page hear of the pack's node, as it does of the server's."""
    front.evaluate(
        """([event, data]) => {
          const node = app.rootGraph.nodes.find((one) => one.type.startsWith('OneGraph'));
          const detail = {node: String(node.id), client_id: null, ...data};
          window.comfyAPI.api.api.dispatchEvent(new CustomEvent(`onegraph.${event}`, {detail}));
        }""",
        [event, data],
    )


def show(front: Front, badge: dict[str, Any], prompt: str) -> None:
    """Have the page hear of a badge of the pack's node."""
    usual = {
        "text": "",
        "progress": None,
        "seconds": None,
        "speedup": None,
        "blocks_speedup": None,
        "eager_calls": 0,
        "calls": 0,
        "compiled_s": 0.0,
        "reasons": [],
    }
    tell(front, "badge", badge={**usual, **badge}, prompt_id=prompt)
