"""The command "Compile this workflow ahead": what it needs is there afterwards, and the page follows it."""

from __future__ import annotations

import pytest
from headless import server
from playwright.sync_api import expect
from support.page.browser import Front

from .conftest import COMPILING, SEEN, VUE, compiling, txt2img

COMMAND = "OneGraph.BakeWorkflow"
JOBS = """
window.jobs = [];
window.comfyAPI.api.api.addEventListener('onegraph.bake', (event) => window.jobs.push(event.detail));
"""


def last_job(front: Front) -> dict[str, object]:
    found: dict[str, object] = front.evaluate("window.jobs.at(-1)")
    return found


def test_a_workflow_without_nodes_of_the_pack(front: Front) -> None:
    front.load({"1": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}}})
    front.command(COMMAND)
    front.toast("No node of this workflow compiles.")


def test_a_workflow_whose_graphs_are_cached(front: Front, running: server.Server) -> None:
    before = running.status()["compiles"]
    front.load(txt2img(shapes="any size", when_missing="wait", backend="inductor"))
    front.evaluate(JOBS)
    front.page.get_by_role("button", name="Compile this workflow ahead").click()
    front.toast("The workflow is ready")
    job = last_job(front)
    assert (job["state"], job["compiled"]) == ("done", 0)
    assert running.status()["compiles"] == before
    expect(front.page.locator(".og-now")).to_have_count(0)


@pytest.mark.full
def test_a_workflow_that_compiles(front: Front, running: server.Server) -> None:
    """Progress is on the tab; after the bake a run compiles nothing."""
    prompt = compiling(192)
    before = running.status()["compiles"]
    front.load(prompt)
    front.evaluate(JOBS)
    front.command(COMMAND)
    front.command(COMMAND)
    front.toast("A workflow is being compiled ahead.")
    expect(front.page.locator(".og-now", has_text="Compiling ahead")).to_be_visible()
    front.until("window.jobs.at(-1)?.state === 'done'")
    assert last_job(front)["compiled"] == 1
    assert running.status()["compiles"] == before + 1
    assert running.run(prompt).status == "success"
    assert running.status()["compiles"] == before + 1


def begin(front: Front, side: int) -> None:
    """Bake a workflow that compiles, until the compile is on the badge and on the tab."""
    front.set(VUE, True)
    front.load(compiling(side))
    front.evaluate(JOBS)
    front.evaluate(SEEN)
    front.command(COMMAND)
    front.until(COMPILING)
    expect(front.page.locator(".og-now", has_text="Compiling ahead")).to_be_visible()


def check_cancelled(front: Front) -> None:
    front.until("window.jobs.at(-1)?.state === 'cancelled'")
    expect(front.page.locator(".og-now")).to_have_count(0)
    assert [text for text in front.badges() if text.startswith("compiling")] == []


def test_a_compile_is_on_the_badge_and_on_the_tab(front: Front, running: server.Server) -> None:
    before = running.status()["compiles"]
    begin(front, 320)
    running.post(f"/onegraph/bake/{last_job(front)['job']}/cancel", {})
    check_cancelled(front)
    assert running.status()["compiles"] == before


@pytest.mark.full
def test_a_bake_is_cancelled_on_the_tab(front: Front, running: server.Server) -> None:
    before = running.status()["compiles"]
    begin(front, 384)
    cancel = front.page.locator("[data-action=cancel-bake]").element_handle()
    front.page.wait_for_function("(seen) => window.seen.length > seen + 1", arg=front.evaluate("window.seen.length"))
    assert cancel.evaluate("(one) => one.isConnected")  # it is not made anew while somebody presses it
    cancel.click()
    check_cancelled(front)
    front.toast("Compiling ahead cancelled")
    expect(front.page.locator(".p-toast-message", has_text="Compiling ahead")).to_have_count(0)
    assert running.status()["compiles"] == before
