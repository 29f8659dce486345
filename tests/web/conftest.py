"""ComfyUI's real front end, served by a real server, in a real Chromium: one of each for the layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from headless import host, models, server, workflows
from support.comfyui.shared_graphs import SharedGraphs
from support.page import browser as browsers
from support.page import graphs
from support.page.browser import Front

from onegraph.graph_cache.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHECKPOINT = "tiny_sdxl.safetensors"
NEVER_COMPILED = "tiny_sd15.safetensors"
SETTINGS = {"Comfy.TutorialCompleted": True, "Comfy.Locale": "en", "Comfy.VueNodes.Enabled": False}


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


def write_base(folder: Path) -> Path:
    """Make a ComfyUI base directory with two tiny checkpoints, and no graph of them."""
    host.boot()
    server.prepare_base(folder)
    models.write_checkpoint("tiny_sdxl", folder / "models/checkpoints" / CHECKPOINT, seed=1)
    models.write_checkpoint("tiny_sd15", folder / "models/checkpoints" / NEVER_COMPILED, seed=1)
    return folder


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, shared_graphs: SharedGraphs) -> Path:
    """The user's graph folder."""
    return shared_graphs.adopt_user(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory, home: Path, shared_graphs: SharedGraphs) -> Path:
    """A base directory where an earlier process compiled the UNet for any size."""
    folder = write_base(tmp_path_factory.mktemp("comfyui"))
    shared_graphs.give(home, folder / "models/checkpoints" / CHECKPOINT, "sdxl")
    return folder


@pytest.fixture(scope="session")
def checkpoints(base: Path) -> Path:
    return base / "models" / "checkpoints"


@pytest.fixture(scope="session")
def store(home: Path, checkpoints: Path) -> Store:
    """The user's store, with graphs in it to look at."""
    made = Store(home)
    graphs.fill(made, checkpoints)
    return made


@pytest.fixture(scope="session")
def running(browser: Browser, base: Path, home: Path, store: Store) -> Iterator[server.Server]:
    with server.running(base, host.comfyui_path(), env=environment(home)) as started:
        started.post("/settings", SETTINGS)
        yield started


def environment(home: Path) -> dict[str, str]:
    return {"ONEGRAPH_HOME": str(home), "ONEGRAPH_TESTING_TRUST_SLOW_GRAPHS": "1"}


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
