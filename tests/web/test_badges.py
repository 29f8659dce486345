"""The badge on a node, drawn by the canvas and by Nodes 2.0, while a graph is compiled and after."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from headless import server, workflows
from playwright.sync_api import expect
from support.page import browser as browsers
from support.page.browser import Front, axe_findings, too_wide

from .conftest import COMPILING, SEEN, VUE, compiling, txt2img

if TYPE_CHECKING:
    from playwright.sync_api import Route


SHOWN = itertools.count()


def queue(front: Front) -> None:
    front.evaluate("() => void app.queuePrompt(0, 1)")


def wait_idle(front: Front, running: server.Server) -> None:
    """Wait until the server's queue is empty, while the page goes on."""
    for _ in range(2 * 600):
        queue = running.get("/queue")
        if not queue["queue_running"] and not queue["queue_pending"]:
            return
        front.page.wait_for_timeout(500)
    raise AssertionError("the queue did not become empty")


@pytest.fixture
def workflow(front: Front) -> workflows.Prompt:
    """A workflow with one node of the pack, open in the page."""
    prompt = txt2img(when_missing="wait", shapes="exact", backend="inductor")
    front.load(prompt)
    return prompt


def show(front: Front, badge: dict[str, Any], prompt: str | None = None) -> None:
    """Have the page hear of a badge of the pack's node, as it does of the server's; of a new prompt, if of none."""
    usual = {
        "text": "",
        "progress": None,
        "seconds": None,
        "speedup": None,
        "eager_calls": 0,
        "calls": 0,
        "reasons": [],
    }
    front.evaluate(
        """([badge, prompt]) => {
          const node = app.rootGraph.nodes.find((one) => one.type.startsWith('OneGraph'));
          const event = new CustomEvent('onegraph.badge', {detail: {node: String(node.id), prompt, badge}});
          window.comfyAPI.api.api.dispatchEvent(event);
        }""",
        [{**usual, **badge}, prompt or f"shown {next(SHOWN)}"],
    )


WHY = {"code": "out_of_range", "text": "the width 4096 is out of range 64-2048", "calls": 3, "remedy": "size_in_range"}
TEXTS = [
    ({"state": "waiting"}, "waiting"),
    ({"state": "compiling", "progress": 0.404}, "compiling 40 %"),
    ({"state": "restored", "seconds": 0.3}, "restored 0.3 s"),
    ({"state": "restored", "seconds": 0.3, "speedup": 2.13}, "restored 0.3 s, 2.1×"),
    ({"state": "compiled", "speedup": 2.13}, "2.1×"),
    ({"state": "partly", "eager_calls": 3, "calls": 20, "reasons": [WHY]}, "3 of 20 calls eager"),
    ({"state": "eager", "eager_calls": 3, "calls": 3, "reasons": [WHY]}, "eager"),
]


@pytest.mark.parametrize("vue", [False, True], ids=["classic", "nodes 2.0"])
def test_what_a_badge_says_and_opens(front: Front, workflow: workflows.Prompt, vue: bool) -> None:
    page = front.page
    front.set(VUE, vue)
    if vue:  # another workflow, in which a node of the same id is of another type, was shown before
        front.load({number: {**workflow["1"]} for number in workflow})
        front.load(workflow)
    for badge, text in TEXTS:
        show(front, badge)
        assert front.badges() == [text]
        if vue:
            expect(page.locator("[data-node-id]", has_text="Compile Model")).to_contain_text(text)
    click_badge(front, text, vue)
    dialog = page.get_by_role("dialog", name="Compile Model (OneGraph)")
    expect(dialog).to_contain_text(WHY["text"])
    expect(dialog).to_contain_text("What to do: Choose a size within the graph's range")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def click_badge(front: Front, text: str, vue: bool) -> None:
    if vue:
        front.page.locator("[data-node-id]", has_text="Compile Model").get_by_text(text, exact=True).click()
        return
    front.evaluate("() => app.canvas.draw(true, true)")
    x, y = front.evaluate(
        """() => {
          const node = app.rootGraph.nodes.find((one) => one.type.startsWith('OneGraph'));
          const [left, top, width, height] = node.badges.find((one) => one.onegraph)().boundingRect;
          const {scale, offset} = app.canvas.ds;
          const box = app.canvas.canvas.getBoundingClientRect();
          return [box.left + (node.pos[0] + left + width / 2 + offset[0]) * scale,
                  box.top + (node.pos[1] + top + height / 2 + offset[1]) * scale];
        }"""
    )
    # What the front end shows above a workflow that it has just opened goes by itself.
    front.page.wait_for_function(
        "(at) => document.elementFromPoint(...at) === app.canvas.canvas", arg=[x, y], polling=50
    )
    front.page.mouse.click(x, y)


def test_the_command_and_the_menu_open_the_reasons(front: Front, workflow: workflows.Prompt) -> None:
    page = front.page
    show(front, TEXTS[-1][0])
    front.command("OneGraph.ShowReasons")
    front.toast("Select a OneGraph node first.")
    front.evaluate("() => app.canvas.select(app.rootGraph.nodes.find((one) => one.type.startsWith('OneGraph')))")
    front.command("OneGraph.ShowReasons")
    expect(page.get_by_role("dialog")).to_contain_text(WHY["text"])
    assert axe_findings(page, ".og-dialog") == []
    page.set_viewport_size({"width": 360, "height": 740})
    assert too_wide(page, ".og-dialog") == []
    page.keyboard.press("Escape")
    entries = front.evaluate(
        """() => app.collectNodeMenuItems(app.rootGraph.nodes.find((one) => one.type.startsWith('OneGraph')))
          .map((one) => one?.content)"""
    )
    assert "Why is it eager? (OneGraph)" in entries


PREVIOUS = "Workspace.PreviousOpenedWorkflow"


@pytest.mark.parametrize("vue", [False, pytest.param(True, marks=pytest.mark.full)], ids=["classic", "nodes 2.0"])
def test_a_badge_is_of_the_workflow_that_runs(front: Front, workflow: workflows.Prompt, vue: bool) -> None:
    """Another workflow whose nodes have the same ids is opened during a run, and runs then, too."""
    page, numbers = front.page, iter(range(1, 9))
    front.set(VUE, vue)

    def queued(route: Route) -> None:
        route.fulfill(json={"prompt_id": f"prompt {next(numbers)}", "number": 1, "node_errors": {}})

    page.route("**/prompt", lambda route: queued(route) if route.request.method == "POST" else route.continue_())
    try:
        with page.expect_response("**/prompt"):
            queue(front)
        show(front, {"state": "compiling", "progress": 0.25}, "prompt 1")
        front.wait_badges("compiling 25 %")
        front.load(workflow, "another")
        front.wait_badges()
        show(front, {"state": "compiling", "progress": 0.5}, "prompt 1")
        front.wait_badges()
        node = next(number for number, one in workflow.items() if one["class_type"] == "OneGraphCompileModel")
        expect(page.locator(".og-now")).to_contain_text(f"Node {node}")
        with page.expect_response("**/prompt"):
            queue(front)
        show(front, {"state": "eager", "eager_calls": 3, "calls": 3, "reasons": [WHY]}, "prompt 2")
        front.wait_badges("eager")
        front.evaluate("(name) => app.extensionManager.command.execute(name)", PREVIOUS)
        front.wait_badges("compiling 50 %")
        show(front, {"state": "restored", "seconds": 0.3}, "prompt 1")
        front.wait_badges("restored 0.3 s")
        expect(page.locator(".og-now")).to_have_count(0)
    finally:
        page.unroute("**/prompt")


def test_badges_are_not_shown_to_those_who_do_not_want_them(front: Front, workflow: workflows.Prompt) -> None:
    show(front, TEXTS[-1][0])
    front.set("OneGraph.ShowBadges", False)
    assert front.badges() == []
    front.set("OneGraph.ShowBadges", True)
    assert front.badges() == ["eager"]


@pytest.mark.full
def test_a_badge_follows_a_compile(front: Front, running: server.Server) -> None:
    """Compile a small model from the page: badge, tab and list follow, and a page that is opened then knows it."""
    front.set(VUE, True)
    front.load(compiling(128))
    before = running.status()["compiles"]
    front.evaluate(SEEN)
    queue(front)
    front.until(COMPILING)
    wait_idle(front, running)
    assert running.status()["compiles"] == before + 1
    (last,) = front.badges()
    assert last.startswith("compiled")
    expect(front.page.locator(".og-row", has_text="tiny_sd15")).to_have_count(1)
    expect(front.page.locator(".og-now")).to_have_count(0)
    assert running.get("/onegraph/badges")["nodes"]
    assert front.page.locator("[data-node-id]", has_text="Compile Model").get_by_text(last).count() == 1


@pytest.mark.full
def test_the_connection_drops_and_the_workflow_changes_during_a_compile(front: Front, running: server.Server) -> None:
    """What was missed meanwhile is asked for, and no node of the other workflow has the badge."""
    before = running.status()["compiles"]
    front.load(compiling(256))
    front.evaluate(SEEN)
    queue(front)
    front.until("window.seen.some((one) => one.badge.startsWith('compiling'))")
    front.evaluate("() => window.comfyAPI.api.api.socket.close()")
    front.load(compiling(256), "another")
    front.page.wait_for_function("() => window.comfyAPI.api.api.socket.readyState === WebSocket.OPEN")
    wait_idle(front, running)
    assert running.status()["compiles"] == before + 1
    front.wait_badges()
    front.evaluate("(name) => app.extensionManager.command.execute(name)", PREVIOUS)
    front.page.wait_for_function(
        "() => app.rootGraph.nodes.flatMap((node) => node.badges)"
        ".some((one) => one.onegraph && one().text.startsWith('compiled'))"
    )
    assert front.badges()[0].startswith("compiled")


@pytest.mark.full
def test_memory_stays_the_same_over_many_runs(front: Front, running: server.Server) -> None:
    """Sixty runs with the tab open: what the page keeps does not grow with them."""
    front.load(txt2img(shapes="any size", when_missing="wait", backend="inductor"))
    sizes = []
    for number in range(60):
        front.evaluate(
            "(seed) => { app.rootGraph.nodes.find((one) => one.type === 'KSampler').widgets[0].value = seed; }",
            1000 + number,
        )
        front.evaluate("() => app.queuePrompt(0, 1)")
        wait_idle(front, running)
        if number in (19, 59):
            sizes.append(heap(front))
    assert front.badges()
    badges = "() => app.rootGraph.nodes.map((node) => node.badges.filter((one) => one.onegraph).length)"
    assert {*front.evaluate(badges)} == {1}
    print(f"the page's heap after 20 and 60 runs: {sizes[0] / 1e6:.1f} and {sizes[1] / 1e6:.1f} MB")
    assert sizes[1] < 1.3 * sizes[0]


def heap(front: Front) -> int:
    """Bytes of the page's objects after garbage was collected."""
    session = front.context.new_cdp_session(front.page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return int(used)


@pytest.mark.full
def test_a_page_that_is_opened_later_knows_the_badges(
    browser: Any, front: Front, running: server.Server, workflow: workflows.Prompt
) -> None:
    queue(front)
    wait_idle(front, running)
    later = browsers.Front(browser, running.port).open()
    try:
        later.load(workflow)
        later.page.wait_for_function("() => app.rootGraph.nodes.some((one) => one.badges.some((b) => b.onegraph))")
        assert later.badges() == front.badges()
    finally:
        later.close()
