"""The badge on a node, drawn by the canvas and by Nodes 2.0, while a graph is compiled and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from headless import server, workflows
from playwright.sync_api import expect
from support.page import browser as browsers
from support.page.browser import Front, axe_findings, too_wide

from .conftest import COMPILING, SEEN, VUE, compiling, queue, show, tell, txt2img

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route


# Texts that the front end shows on nodes, as the server tells them.
SAID = """() => app.rootGraph.nodes.flatMap((node) => node.widgets ?? [])
  .filter((one) => one.name === '$$node-text-preview').map((one) => one.value)"""


def wait_idle(front: Front, running: server.Server) -> None:
    """Wait until the server's queue is empty, while the page goes on."""
    for _ in range(2 * 600):
        queue = running.get("/queue")
        if not queue["queue_running"] and not queue["queue_pending"]:
            return
        front.page.wait_for_timeout(500)
    raise AssertionError("the queue did not become empty")


WHY = {"code": "out_of_range", "text": "the width 4096 is out of range 64-2048", "calls": 3, "remedy": "size_in_range"}
TEXTS = [
    ({"state": "waiting"}, "waiting"),
    ({"state": "not_run"}, "not run"),
    ({"state": "compiling", "progress": 0.404}, "compiling 40 %"),
    ({"state": "restored", "seconds": 0.3}, "restored 0.3 s"),
    ({"state": "restored", "seconds": 0.3, "speedup": 2.13}, "restored 0.3 s, 2.1× faster"),
    ({"state": "compiled", "speedup": 2.13}, "2.1× faster"),
    ({"state": "compiled", "speedup": 0.84}, "0.8× as fast"),
    ({"state": "restored", "seconds": 0.3, "blocks_speedup": 4.13}, "restored 0.3 s, blocks 4.1× faster at first use"),
    ({"state": "partly", "eager_calls": 3, "calls": 20, "reasons": [WHY]}, "3 of 20 calls uncompiled"),
    ({"state": "eager", "eager_calls": 3, "calls": 3, "reasons": [WHY]}, "uncompiled"),
]


@pytest.mark.parametrize("vue", [False, True], ids=["classic", "nodes 2.0"])
def test_what_a_badge_says_and_opens(
    front: Front, workflow: workflows.Prompt, queued: Callable[[], str], vue: bool
) -> None:
    page = front.page
    front.set(VUE, vue)
    if vue:  # another workflow, in which a node of the same id is of another type, was shown before
        front.load({number: {**workflow["1"]} for number in workflow})
        front.load(workflow)
    prompt = queued()
    for badge, text in TEXTS:
        show(front, badge, prompt)
        assert front.badges() == [text]
        if vue:
            node = page.locator("[data-node-id]", has_text="Compile Model")
            expect(node).to_contain_text(text)
            found = axe_findings(page, f"[data-node-id='{node.get_attribute('data-node-id')}']")
            assert [one for one in found if "node-collapse-button" not in one] == []  # ComfyUI's own
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


def test_the_command_and_the_menu_open_the_reasons(
    front: Front, workflow: workflows.Prompt, queued: Callable[[], str]
) -> None:
    page = front.page
    show(front, TEXTS[-1][0], queued())
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
    assert "Why is it uncompiled? (OneGraph)" in entries


PREVIOUS = "Workspace.PreviousOpenedWorkflow"


@pytest.mark.parametrize("vue", [False, pytest.param(True, marks=pytest.mark.full)], ids=["classic", "nodes 2.0"])
def test_a_badge_is_of_the_workflow_that_runs(
    front: Front, workflow: workflows.Prompt, queued: Callable[[], str], vue: bool
) -> None:
    """Another workflow whose nodes have the same ids is opened during a run, and runs then, too."""
    page = front.page
    front.set(VUE, vue)
    first = queued()
    show(front, {"state": "compiling", "progress": 0.25}, first)
    tell(front, "text", text="compiling 25%", prompt_id=first)
    front.wait_badges("compiling 25 %")
    assert front.evaluate(SAID) == ["compiling 25%"]
    front.load(workflow, "another")
    front.wait_badges()
    show(front, {"state": "compiling", "progress": 0.5}, first)
    tell(front, "text", text="compiling 50%", prompt_id=first)
    front.wait_badges()
    assert front.evaluate(SAID) == []
    node = next(number for number, one in workflow.items() if one["class_type"] == "OneGraphCompileModel")
    expect(page.locator(".og-now")).to_contain_text(f"Node {node}")
    second = queued()
    show(front, {"state": "eager", "eager_calls": 3, "calls": 3, "reasons": [WHY]}, second)
    front.wait_badges("uncompiled")
    front.evaluate("(name) => app.extensionManager.command.execute(name)", PREVIOUS)
    front.wait_badges("compiling 50 %")
    show(front, {"state": "restored", "seconds": 0.3}, first)
    front.wait_badges("restored 0.3 s")
    expect(page.locator(".og-now")).to_have_count(0)


def test_a_background_compile_goes_on_beside_later_runs(
    front: Front, workflow: workflows.Prompt, queued: Callable[[], str]
) -> None:
    """The compile is of an earlier prompt of the same workflow: its end leaves what the later one showed."""
    first, second = queued(), queued()
    show(front, {"state": "compiling", "progress": 0.25}, first)
    show(front, TEXTS[-1][0], second)
    front.wait_badges("compiling 25 %")
    tell(front, "badge", badge=None, prompt_id=first)
    front.wait_badges("uncompiled")


def test_what_is_told_before_the_page_knows_its_prompt(front: Front, workflow: workflows.Prompt) -> None:
    """The server's answer to the page comes after a badge of that prompt, and after those of strangers' prompts."""

    def answer(route: Route) -> None:
        show(front, TEXTS[-1][0], "early")
        for number in range(5):
            show(front, {"state": "restored", "seconds": 0.3}, f"stranger {number}")
        route.fulfill(json={"prompt_id": "early", "number": 1, "node_errors": {}})

    asked: list[Route] = []
    front.page.route("**/prompt", lambda route: asked.append(route))
    queue(front)
    while not asked:
        front.page.wait_for_timeout(50)
    answer(asked[0])
    front.wait_badges("uncompiled")
    front.page.unroute("**/prompt")


def test_of_two_answers_the_later_question_counts(
    front: Front, workflow: workflows.Prompt, queued: Callable[[], str]
) -> None:
    """A prompt ends while the page still waits for an older answer, and both come in the wrong order."""
    asked: list[Route] = []
    prompt = queued()
    show(front, {"state": "waiting"}, prompt)
    front.wait_badges("waiting")
    front.page.route("**/onegraph/badges", lambda route: asked.append(route))
    for _ in range(2):
        front.evaluate(
            "() => window.comfyAPI.api.api.dispatchEvent(new CustomEvent('status', {detail: {exec_info: {}}}))"
        )
    while len(asked) < 2:
        front.page.wait_for_timeout(50)
    node = next(number for number, one in workflow.items() if one["class_type"] == "OneGraphCompileModel")
    for route, state in zip(reversed(asked[-2:]), ("not_run", "waiting"), strict=True):
        badge = {"state": state, "text": "", "calls": 0, "eager_calls": 0, "reasons": []}
        with front.page.expect_response("**/onegraph/badges"):
            route.fulfill(json={"badges": [{"node": node, "prompt_id": prompt, "client_id": None, "badge": badge}]})
        front.wait_badges("not run")
    front.page.wait_for_timeout(500)
    assert front.badges() == ["not run"]
    front.page.unroute("**/onegraph/badges")


def test_a_prompt_that_is_not_the_pages_is_on_the_tab_alone(front: Front, workflow: workflows.Prompt) -> None:
    """Another client's, or a program's, whose nodes have the same ids."""
    show(front, {"state": "compiling", "progress": 0.25}, "somebody's")
    tell(front, "text", text="compiling 25%", prompt_id="somebody's")
    expect(front.page.locator(".og-now")).to_contain_text("compiling 25 %")
    expect(front.page.locator(".og-now")).to_contain_text("Node ")
    show(front, TEXTS[-1][0], "somebody's")
    expect(front.page.locator(".og-now")).to_have_count(0)
    assert front.badges() == [] and front.evaluate(SAID) == []


def test_pages_show_what_they_queued(
    browser: Browser, front: Front, running: server.Server, workflow: workflows.Prompt
) -> None:
    """Three clients with one workflow on one server: a program and two pages, one of which is loaded again."""
    eager = txt2img(seed=5, when_missing="eager", shapes="exact", backend="inductor")
    front.load(eager)
    assert running.run(eager).status == "success"
    assert running.get("/onegraph/badges")["badges"]
    front.page.wait_for_timeout(500)
    assert front.badges() == [] and front.evaluate(SAID) == []
    later = browsers.Front(browser, running.port).open()
    try:
        later.load(eager)
        later.page.wait_for_timeout(500)
        assert later.badges() == [] and later.evaluate(SAID) == []
        later.load(txt2img(seed=6, when_missing="eager", shapes="exact", backend="inductor"))
        queue(later)
        later.page.wait_for_function("() => app.rootGraph.nodes.some((one) => one.badges.some((b) => b().text))")
        wait_idle(later, running)
        later.wait_badges("uncompiled")
        assert later.evaluate(SAID)[0].startswith("uncompiled: ")
        assert front.badges() == [] and front.evaluate(SAID) == []
        for _ in range(2):
            reload(later)
            later.wait_badges("uncompiled")
        later.load(eager, "another")
        later.wait_badges()
        reload(later)
        later.page.wait_for_timeout(1000)
        assert later.badges() == []
        later.evaluate("(name) => app.extensionManager.command.execute(name)", PREVIOUS)
        later.wait_badges("uncompiled")
        assert later.errors == []
    finally:
        later.close()


def reload(front: Front) -> None:
    """Load the page again, once the front end has kept the open workflow."""
    front.page.wait_for_function(
        """() => {
          const kept = JSON.stringify({...sessionStorage});
          return kept.includes(app.extensionManager.workflow.activeWorkflow.path)
            && Object.values(localStorage).some((one) => one.includes('OneGraphCompileModel'));
        }"""
    )
    front.page.reload(wait_until="domcontentloaded")
    front.wait_open()


def test_a_cancelled_compile_does_not_wait(front: Front, running: server.Server) -> None:
    front.load(compiling(448))
    front.evaluate(SEEN)
    queue(front)
    front.page.wait_for_function("() => window.seen.some((one) => one.badge.startsWith('compiling'))", timeout=300_000)
    front.command("Comfy.Interrupt")
    wait_idle(front, running)
    front.wait_badges("not run")


def test_a_run_that_never_calls_the_model_does_not_wait(front: Front, running: server.Server) -> None:
    prompt = workflows.with_inputs(txt2img(seed=7, when_missing="eager"), "KSampler", denoise=0.0)
    front.load(prompt)
    queue(front)
    front.page.wait_for_function("() => app.rootGraph.nodes.some((one) => one.badges.some((b) => b().text))")
    wait_idle(front, running)
    front.wait_badges("not run")
    front.evaluate("() => app.canvas.select(app.rootGraph.nodes.find((one) => one.type.startsWith('OneGraph')))")
    front.command("OneGraph.ShowReasons")
    expect(front.page.get_by_role("dialog")).to_contain_text("This node did not run yet.")


def test_badges_are_not_shown_to_those_who_do_not_want_them(
    front: Front, workflow: workflows.Prompt, queued: Callable[[], str]
) -> None:
    show(front, TEXTS[-1][0], queued())
    front.wait_badges("uncompiled")
    front.set("OneGraph.ShowBadges", False)
    assert front.badges() == []
    front.set("OneGraph.ShowBadges", True)
    assert front.badges() == ["uncompiled"]


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
    assert running.get("/onegraph/badges")["badges"]
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


def test_the_share_of_a_prompt_that_ran_compiled(front: Front, workflow: object, queued: Callable[[], str]) -> None:
    """Of the last prompt of the open workflow, once it is over; a prompt of another page tells nothing."""

    def runs(prompt: str, milliseconds: int) -> None:
        for event, timestamp in (("execution_start", 1000), ("execution_success", 1000 + milliseconds)):
            front.evaluate(
                "([event, detail]) => window.comfyAPI.api.api.dispatchEvent(new CustomEvent(event, {detail}))",
                [event, {"prompt_id": prompt, "timestamp": timestamp}],
            )

    front.show_tab()
    front.page.get_by_role("tab", name="Workflow").click()
    share = front.page.locator(".og-workflow > p").first
    expect(share).to_be_hidden()
    show(front, {"state": "restored", "compiled_s": 9.0}, "a stranger's")
    runs("a stranger's", 9000)
    expect(share).to_be_hidden()
    prompt = queued()
    show(front, {"state": "restored", "compiled_s": 6.2}, prompt)
    runs(prompt, 8000)
    expect(share).to_have_text("Models ran compiled for 6.2 s of the last prompt's 8 s (78 %).")
