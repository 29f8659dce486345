"""The pack's settings in ComfyUI's dialog, its languages, and what the page does without its server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from headless import host, server
from playwright.sync_api import expect
from support.page.browser import Front

from .conftest import SETTINGS, txt2img

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from support.comfyui.installation import Installation

BUDGET = "OneGraph.DiskBudget"
GIB = 1 << 30


def budget(running: server.Server) -> int | None:
    found: int | None = running.get("/onegraph/settings")["disk_budget_bytes"]
    return found


def test_the_budget_is_set_in_the_dialog(front: Front, running: server.Server) -> None:
    page = front.page
    assert front.setting(BUDGET) == budget(running) / GIB == 10  # type: ignore[operator]
    front.command("Comfy.ShowSettingsDialog")
    dialog = page.locator("[role=dialog]").last
    dialog.get_by_text("OneGraph", exact=True).first.click()
    for name in ("Disk space for graphs in GiB", "Show badges on nodes", "Backend of new nodes"):
        expect(dialog.get_by_text(name).first).to_be_visible()
    field = dialog.locator(f"[id='{BUDGET}'] input, input[id='{BUDGET}']").first
    field.press("Control+a")
    field.press_sequentially("20")
    field.press("Tab")
    front.toast("Graphs may take 20 GiB now.")
    assert budget(running) == 20 * GIB
    dialog.get_by_role("button", name="Close").first.click()
    expect(dialog).to_have_count(0)
    front.set(BUDGET, 0)
    front.toast("Graphs may take any space now.")
    assert budget(running) is None
    front.set(BUDGET, 10)
    front.toast("Graphs may take 10 GiB now.")
    assert budget(running) == 10 * GIB


def test_new_nodes_have_the_values_of_the_settings(front: Front) -> None:
    made = """(type) => {
      const node = LiteGraph.createNode(type);
      return Object.fromEntries(node.widgets.map((one) => [one.name, one.value]));
    }"""
    front.set("OneGraph.Default.Shapes", "exact")
    front.set("OneGraph.Default.WhenMissing", "background")
    try:
        values = front.evaluate(made, "OneGraphCompileModel")
        assert values == {"backend": "auto", "shapes": "exact", "when_missing": "background"}
        front.load(txt2img(shapes="any size", when_missing="wait"))
        loaded = front.evaluate("async () => (await app.graphToPrompt()).output")
        (node,) = [one for one in loaded.values() if one["class_type"] == "OneGraphCompileModel"]
        assert (node["inputs"]["shapes"], node["inputs"]["when_missing"]) == ("any size", "wait")
    finally:
        front.set("OneGraph.Default.Shapes", "any size")
        front.set("OneGraph.Default.WhenMissing", "wait")


LANGUAGES = {
    "ja": ("OneGraph", "すべての状態", "このワークフローを事前コンパイル"),
    "zh": ("OneGraph", "全部状态", "预编译此工作流"),
}


def test_the_page_speaks_the_users_language(front: Front) -> None:
    page = front.page
    try:
        for language, (title, states, command) in LANGUAGES.items():
            front.set("Comfy.Locale", language)
            expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
            expect(page.locator(".og-selects option").first).to_have_text(states)
            expect(page.get_by_role("button", name=command).first).to_be_attached()
            expect(page.locator(".side-bar-button-selected")).to_have_attribute("aria-label", re.compile("OneGraph"))
    finally:
        front.set("Comfy.Locale", "en")
    expect(page.get_by_role("heading", name="OneGraph", exact=True)).to_be_visible()


def test_the_connection_is_lost_and_comes_back(front: Front) -> None:
    """The list stays, says from when it is, and nothing can be done with it; the next answer ends that."""
    page = front.page
    page.locator(".og-row").first.click()
    expect(page.get_by_role("button", name="Verify")).to_be_enabled()
    front.context.set_offline(True)
    try:
        page.get_by_role("button", name="Reload").click()
        expect(page.locator(".og-banner")).to_contain_text("Can't reach ComfyUI. Showing data from")
        expect(page.get_by_role("button", name="Verify")).to_be_disabled()
        page.get_by_role("button", name="Prune").click()
        front.toast("ComfyUI does not answer.")
    finally:
        front.context.set_offline(False)
    expect(page.locator(".og-banner")).to_be_hidden()
    expect(page.get_by_role("button", name="Verify")).to_be_enabled()


@pytest.mark.full
def test_the_server_is_killed(browser: Browser, installed: Installation, running: server.Server) -> None:
    """The list of a server that is gone stays, says from when it is, and nothing can be done with it."""
    with server.running(installed.base, host.comfyui_path(), env=installed.environment, log="gone.log") as other:
        other.post("/settings", SETTINGS)
        front = Front(browser, other.port).open()
        try:
            front.show_tab()
            page = front.page
            rows = page.locator(".og-list li")
            expect(rows.first).to_be_visible()
            page.locator(".og-row").first.click()
            expect(page.get_by_role("button", name="Verify")).to_be_enabled()
            before = rows.count()
            other.stop()
            page.get_by_role("button", name="Reload").click()
            expect(page.locator(".og-banner")).to_contain_text("Can't reach ComfyUI. Showing data from")
            expect(page.get_by_role("button", name="Verify")).to_be_disabled()
            assert rows.count() == before
            page.get_by_role("button", name="Prune").click()
            front.toast("ComfyUI does not answer.")
        finally:
            front.close()
