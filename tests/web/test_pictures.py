"""The pictures of the documentation, taken on demand: pytest tests/web/test_pictures.py --pictures docs/pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from headless import server, workflows
from playwright.sync_api import expect
from support.page.browser import Front

from .conftest import SETTINGS, compiling, txt2img
from .test_insert import open_graph, template

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EXAMPLE = workflows.template("txt2img")
RESULT = workflows.ROOT / "benchmarks" / "results" / "2026-11-21-h200-7d752b1.json"
CLEAN = {
    "Comfy.Minimap.Visible": False,
    "Comfy.Graph.CanvasInfo": False,
    "Comfy.VueNodes.Enabled": True,
    "Comfy.ColorPalette": "dark",
}
BUDGET = 40 << 20  # bytes, of which the graphs of the tests take a part that can be seen
MOST_BYTES = 190_000


@pytest.fixture(scope="module")
def pictures(request: pytest.FixtureRequest) -> Path:
    path = Path(request.config.getoption("--pictures"))
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture
def front(browser: Browser, running: server.Server, pictures: Path) -> Iterator[Front]:
    """A page of its own, without what may be in the way of a picture."""
    made = Front(browser, running.port, scale=1.25).open()
    for name, value in {**SETTINGS, **CLEAN}.items():
        made.set(name, value)
    running.post("/onegraph/settings", {"disk_budget_bytes": BUDGET})
    made.evaluate("(graph) => app.loadGraphData(graph)", json.loads(EXAMPLE.read_text()))
    show_badge(made, running)
    yield made
    for name, value in SETTINGS.items():
        made.set(name, value)
    made.set("Comfy.ColorPalette", "dark")
    made.close()
    running.post("/onegraph/settings", {"disk_budget_bytes": 10 << 30})


def show_badge(front: Front, running: server.Server) -> None:
    """Have the page take a real run of a small model, whose node has the same id, for one of the open workflow."""
    assert running.run(txt2img(seed=9, when_missing="wait")).status == "success"
    (told,) = running.get("/onegraph/badges")["badges"]
    answer = {"prompt_id": told["prompt_id"], "number": 1, "node_errors": {}}
    front.page.route("**/prompt", lambda route: route.fulfill(json=answer))
    front.evaluate("() => void app.queuePrompt(0, 1)")
    front.page.wait_for_function("() => app.rootGraph.nodes.some((one) => one.badges.some((b) => b().text))")
    front.page.unroute("**/prompt")
    expect(front.page.get_by_text("Job queued")).to_have_count(0)


def take(front: Front, path: Path, **options: object) -> None:
    """Write a picture, of 256 colours where all of them take too many bytes."""
    from PIL import Image

    front.evaluate("() => app.extensionManager.toast.removeAll()")
    front.page.wait_for_timeout(500)  # what moves comes to rest
    front.page.screenshot(path=path, **options)  # type: ignore[arg-type]
    with Image.open(path) as image:
        pixels = image.convert("RGB")
    pixels.save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        few = pixels.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(path, optimize=True)


def fit(front: Front, *types: str) -> None:
    """Show the whole workflow, or its nodes of some types, in what the panels leave of the canvas."""
    front.page.mouse.move(640, 600)
    front.evaluate(
        """(types) => {
          const nodes = app.rootGraph.nodes.filter((one) => !types.length || types.includes(one.type)).map(
            ({pos, size}) => [pos[0], pos[1], pos[0] + size[0], pos[1] + size[1]]);
          const [left, top] = [0, 1].map((at) => Math.min(...nodes.map((one) => one[at])));
          const [right, bottom] = [2, 3].map((at) => Math.max(...nodes.map((one) => one[at])));
          const edges = [...document.querySelectorAll('.side-bar-panel')].map((one) => one.getBoundingClientRect())
            .filter((one) => one.width > 0);
          const from = Math.max(70, ...edges.filter((one) => one.left < 200).map((one) => one.right)) + 24;
          const until = Math.min(innerWidth, ...edges.filter((one) => one.left > 400).map((one) => one.left)) - 24;
          const {ds} = app.canvas;
          ds.scale = Math.min((until - from) / (right - left), (innerHeight - 250) / (bottom - top), 1);
          const box = app.canvas.canvas.getBoundingClientRect();
          ds.offset[0] = (from - box.left) / ds.scale - left;
          ds.offset[1] = (170 - box.top) / ds.scale - top;
          app.canvas.setDirty(true, true);
        }""",
        types,
    )
    front.page.wait_for_timeout(800)


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_tab(front: Front, pictures: Path, theme: str) -> None:
    front.set("Comfy.ColorPalette", theme)
    front.page.set_viewport_size({"width": 1280, "height": 760})
    front.show_tab()
    expect(front.page.locator(".og-row").first).to_be_visible()
    fit(front)
    take(front, pictures / f"graphs-tab-{theme}.png")


def test_one_graph(front: Front, pictures: Path) -> None:
    front.page.set_viewport_size({"width": 1280, "height": 760})
    front.show_tab()
    front.page.locator(".og-row", has_text="tiny_sdxl").first.click()
    fit(front)
    take(front, pictures / "graph-details.png")


def test_the_open_workflow(front: Front, pictures: Path) -> None:
    """One without a node of the pack, and what the tab tells of its models."""
    front.page.set_viewport_size({"width": 1280, "height": 640})
    open_graph(front, template())
    front.show_tab()
    front.page.get_by_role("tab", name="Workflow").click()
    expect(front.page.locator(".og-models-list li")).to_have_count(1)
    fit(front)
    take(front, pictures / "workflow-view.png")


def test_a_workflow(front: Front, running: server.Server, pictures: Path) -> None:
    """Large enough to be read in a column of text: the nodes until the sampler, alone, with what the node of the
    full-size model told on an H200."""
    run = json.loads(RESULT.read_text())["server"]["default"]["node"]["runs"]["2"]
    (told,) = running.get("/onegraph/badges")["badges"]
    told["badge"] |= {"state": "restored", "seconds": run["restore_s"], "speedup": run["speedup"]}
    front.evaluate(
        """(told) => ['badge', 'text'].forEach((of) =>
          window.comfyAPI.api.api.dispatchEvent(new CustomEvent(`onegraph.${of}`, {detail: told})))""",
        {**told, "text": run["text"].replace("x eager", "x faster")},
    )
    front.page.set_viewport_size({"width": 1280, "height": 700})
    shown = ("CheckpointLoaderSimple", "EmptyLatentImage", "OneGraphCompileModel", "CLIPTextEncode", "KSampler")
    fit(front, *shown)
    take(front, pictures / "workflow.png", clip={"x": 72, "y": 124, "width": 856, "height": 516})


def test_a_badge_while_compiling(front: Front, running: server.Server, pictures: Path) -> None:
    """A compile that a workflow starts, in the middle of it."""
    front.page.set_viewport_size({"width": 1280, "height": 640})
    front.load(compiling(256))
    front.show_tab()
    fit(front, "OneGraphCompileModel", "KSampler")
    front.evaluate("() => void app.queuePrompt(0, 1)")
    front.until(
        "app.rootGraph.nodes.some((node) => node.badges.some("
        "(one) => one.onegraph && /compiling [3-9]\\d %/.test(one().text)))",
    )
    take(front, pictures / "badge-compiling.png")
    front.command("Comfy.Interrupt")


def test_the_help(front: Front, pictures: Path) -> None:
    page = front.page
    page.set_viewport_size({"width": 1280, "height": 720})
    fit(front)
    page.locator("[data-node-id]", has_text="Compile Model").get_by_test_id("node-title").click()
    page.locator("[data-testid=info-button]").click()
    expect(page.get_by_text("Runs the model's UNet through a compiled graph")).to_be_visible()
    edge = page.locator(".p-splitter-gutter:visible").last.bounding_box()
    assert edge is not None
    page.mouse.move(edge["x"] + 2, 400)
    page.mouse.down()
    page.mouse.move(680, 400, steps=5)
    page.mouse.up()
    fit(front)
    take(front, pictures / "help.png")
