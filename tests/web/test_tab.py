"""The OneGraph tab: what it lists, and what can be done there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from headless import server
from playwright.sync_api import expect
from support.page import graphs
from support.page.browser import Front

from onegraph.graph_cache.store import Store

MANY = [600, pytest.param(5000, marks=pytest.mark.full)]


def names(front: Front) -> list[str]:
    return front.page.locator(".og-list .og-name").all_inner_texts()


def test_it_lists_what_is_cached(front: Front, running: server.Server) -> None:
    there = running.get("/onegraph/graphs?state=*&limit=100")
    expect(front.page.locator(".og-count")).to_have_text(f"{there['total']} graphs")
    sums = front.page.locator(".og-sums div", has_text="graphs").first
    assert sums.locator("dd").inner_text() == str(there["total"])
    assert sum(there["totals"]["states"].values()) == there["total"]
    first = there["entries"][0]
    row = front.page.locator(".og-row").first
    expect(row).to_contain_text(first["model"].split("/")[0])
    for text in (first["shapes"], first["dtype"], "MiB"):
        expect(row).to_contain_text(text)
    assert front.page.locator(".og-disk").inner_text().endswith("of 10 GiB on disk")


def test_markup_in_a_label_is_text(front: Front) -> None:
    front.page.get_by_role("searchbox", name="Search").fill(graphs.MARKUP)
    expect(front.page.locator(".og-list li")).to_have_count(1)
    expect(front.page.locator(".og-what")).to_contain_text(graphs.MARKUP)
    front.page.locator(".og-row").click()
    expect(front.page.locator(".og-pairs").first).to_contain_text(graphs.MARKUP)
    assert front.page.locator(".og-tab img").count() == 0
    assert front.evaluate("window.markup") is None


def test_it_is_searched_filtered_and_sorted(front: Front) -> None:
    page = front.page
    page.get_by_role("searchbox").fill("dreamshaper")
    expect(page.locator(".og-count")).to_have_text("3 graphs")
    page.get_by_role("searchbox").fill("nothing is called so")
    expect(page.locator(".og-message")).to_contain_text("No graph matches")
    page.get_by_role("button", name="Show all").click()
    page.get_by_label("State", exact=True).select_option("quarantined")
    expect(page.locator(".og-list li")).to_have_count(1)
    expect(page.locator(".og-row .og-chip")).to_have_text("Quarantined")
    page.get_by_label("State", exact=True).select_option("")
    page.get_by_label("Sort by").select_option("model")
    expect(page.get_by_role("button", name="Ascending")).to_be_visible()
    expect(page.locator(".og-row .og-name").first).to_contain_text("dreamshaper")
    page.get_by_role("button", name="Ascending").click()
    expect(page.locator(".og-row .og-name").first).to_contain_text("z_image")


def test_it_is_used_by_keyboard_alone(front: Front) -> None:
    page = front.page
    page.get_by_label("Descending").focus()
    page.keyboard.press("Tab")
    expect(page.locator(".og-row").first).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".og-row").nth(1)).to_be_focused()
    page.keyboard.press("End")
    expect(page.locator(".og-row").last).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.locator(".og-detail h3")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Verify")).to_be_focused()
    page.keyboard.press("Enter")
    front.toast("Graph verified")
    expect(page.get_by_role("button", name="Verify")).to_be_focused()
    page.get_by_role("button", name="Back to the list").press("Enter")
    expect(page.locator(".og-row").first).to_be_focused()


def test_a_dialog_gives_the_focus_back_to_a_button_that_was_drawn_anew_behind_it(front: Front) -> None:
    page, held = front.page, []
    page.route("**/onegraph/graphs/*", lambda route: held.append(route))
    page.locator(".og-row").first.click()
    delete = page.locator(".og-detail [data-action=delete]")
    delete.press("Enter")
    expect(page.get_by_role("dialog", name="Delete this graph?")).to_be_visible()
    assert held
    page.unroute("**/onegraph/graphs/*")  # which lets go what waits
    expect(page.locator("[data-part=key]")).to_be_attached()
    page.keyboard.press("Escape")
    expect(delete).to_be_focused()


def press(front: Front, action: str) -> None:
    front.page.locator(f".og-detail [data-action={action}]").click()


def confirm(front: Front, action: str, title: str) -> None:
    press(front, action)
    dialog = front.page.get_by_role("dialog", name=title)
    expect(dialog).to_be_visible()
    dialog.locator("footer button").last.click()


def test_a_graph_is_verified_pinned_and_deleted(front: Front, running: server.Server) -> None:
    page, before = front.page, running.get("/onegraph/graphs?state=*")["total"]
    page.get_by_role("searchbox").fill("wan2.1")
    expect(page.locator(".og-count")).to_have_text("3 graphs")
    page.locator(".og-row", has_text="VAE decoder").click()
    press(front, "verify")  # nothing is lost by these three, so nobody is asked
    front.toast("Graph verified")
    press(front, "pin")
    front.toast("Graph pinned")
    expect(page.locator("[data-action=unpin]")).to_be_visible()
    press(front, "unpin")
    front.toast("Graph unpinned")
    confirm(front, "delete", "Delete this graph?")
    front.toast("Graph deleted")
    expect(page.locator(".og-count")).to_have_text("2 graphs")
    assert running.get("/onegraph/graphs?state=*")["total"] == before - 1


def test_nothing_happens_without_a_yes(front: Front, running: server.Server) -> None:
    page, before = front.page, running.get("/onegraph/graphs?state=*")["total"]
    page.locator(".og-row").first.click()
    for leave in ("Escape", None):
        page.locator(".og-detail [data-action=delete]").click()
        if leave is None:
            page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        else:
            page.keyboard.press(leave)
        expect(page.get_by_role("dialog")).to_have_count(0)
    assert running.get("/onegraph/graphs?state=*")["total"] == before


def test_a_prune_shows_first_what_it_removes(front: Front, running: server.Server) -> None:
    page = front.page
    assert running.get("/onegraph/graphs?state=stale")["total"] == len(graphs.STALE)
    unusable = 2 * len(graphs.STALE) + 1  # each with its copy, and the one that is quarantined
    page.get_by_role("button", name="Prune").click()  # what is of no use here, whatever the budget, and its copies
    dialog = page.get_by_role("dialog", name="Prune graphs?")
    expect(dialog.locator(".og-plain li")).to_have_count(unusable)
    dialog.get_by_role("button", name="Remove them").click()
    front.toast(f"Removed: {len(graphs.STALE) + 1} graphs, {len(graphs.STALE)} copies beside models")
    states = running.get("/onegraph/graphs")["totals"]["states"]
    assert {*states} == {"signed"}
    page.get_by_role("button", name="Prune").click()
    front.toast("Nothing to prune")
    taken = running.get("/onegraph/graphs")["totals"]["bytes"]
    running.post("/onegraph/settings", {"disk_budget_bytes": taken - 1})
    planned = running.post("/onegraph/prune", {"dry_run": True})["removed"]
    assert [one["state"] for one in planned] == ["signed"]
    page.get_by_role("button", name="Prune").click()
    expect(dialog.locator(".og-plain li")).to_have_count(len(planned))
    dialog.get_by_role("button", name="Remove them").click()
    front.toast("Removed: 1 graph")
    assert running.get("/onegraph/graphs")["total"] == states["signed"] - 1
    running.post("/onegraph/settings", {"disk_budget_bytes": 10 << 30})


def test_models_that_are_ready_and_that_would_compile(front: Front) -> None:
    page = front.page
    page.get_by_role("tab", name="Models").click()
    row = page.locator(".og-models .og-row")
    expect(row.filter(has_text="no_graph_yet")).to_contain_text("Would compile")
    expect(row.filter(has_text="sd_xl_base")).to_contain_text("3 graphs")
    row.filter(has_text="sd_xl_base").click()
    expect(page.locator(".og-count")).to_have_text("3 graphs")


def test_an_empty_store(front: Front) -> None:
    page = front.page
    page.route(
        "**/onegraph/graphs?*", lambda route: route.fulfill(json={**route.fetch().json(), "entries": [], "total": 0})
    )
    try:
        front.show_tab()
        expect(page.get_by_role("heading", name="No graph yet")).to_be_visible()
        expect(page.locator(".og-message").get_by_role("button", name="Compile this workflow ahead")).to_be_visible()
    finally:
        page.unroute("**/onegraph/graphs?*")


@pytest.mark.parametrize("many", MANY)
def test_many_graphs(front: Front, store: Store, checkpoints: Path, many: int) -> None:
    """Only what is visible is asked for and drawn, whatever there is."""
    page, asked = front.page, []
    folders = graphs.multiply(store, checkpoints, many)
    page.on("request", lambda request: "/onegraph/graphs?" in request.url and asked.append(request.url))
    try:
        front.show_tab()
        page.get_by_role("searchbox").fill("many")
        expect(page.locator(".og-count")).to_have_text(f"{many:,} graphs")
        assert page.locator(".og-list li").count() < 40
        asked.clear()
        page.locator(".og-row").first.focus()
        page.keyboard.press("End")
        expect(page.locator(f"li[aria-posinset='{many}'] .og-row")).to_be_visible()
        assert page.locator(".og-list li").count() < 40 and len(asked) <= 3
        print(f"the tab with {many} graphs: {took(front):.2f} s")
    finally:
        for folder in folders:
            shutil.rmtree(folder)


def took(front: Front) -> float:
    """Seconds until the tab's first rows are there."""
    seconds: float = front.evaluate(
        """async () => {
          const began = performance.now();
          const shown = async (there) => {
            await app.extensionManager.command.execute('Workspace.ToggleSidebarTab.onegraph-graphs');
            while (Boolean(document.querySelector('.og-row')) !== there) await new Promise(requestAnimationFrame);
          };
          await shown(false);
          const from = performance.now();
          await shown(true);
          return (performance.now() - from) / 1000;
        }"""
    )
    return seconds
