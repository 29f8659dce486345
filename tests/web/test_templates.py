"""The templates, opened from ComfyUI's list of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from headless import workflows
from playwright.sync_api import expect
from support.page.browser import Front

from .test_states import PICTURED, take

UNKNOWN = "() => app.rootGraph.nodes.map(({type}) => type).filter((one) => !(one in LiteGraph.registered_node_types))"


@pytest.mark.parametrize("name", workflows.names())
def test_a_template_opens_as_the_tested_workflow(name: str, front: Front, request: pytest.FixtureRequest) -> None:
    """Under its title and with its picture; the page knows all of its nodes."""
    title, page = workflows.template(name).stem, front.page
    front.command("Comfy.BrowseTemplates")
    page.get_by_role("button", name="ComfyUI-OneGraph").click()
    card = page.get_by_test_id(f"template-workflow-{title}")
    expect(card.get_by_role("heading")).to_have_text(title)
    card.scroll_into_view_if_needed()
    page.wait_for_function("(one) => one.complete && one.naturalWidth > 0", arg=card.locator("img").element_handle())
    card.click()
    page.wait_for_function(
        "(name) => app.extensionManager.workflow.activeWorkflow.path.endsWith(name)", arg=f"/{title}.json"
    )
    assert front.evaluate(UNKNOWN) == []
    folder = request.config.getoption("--states")
    for width in PICTURED if folder else ():
        page.set_viewport_size({"width": width, "height": 800})
        for theme in ("dark", "light"):
            front.set("Comfy.ColorPalette", theme)
            front.command("Comfy.Canvas.FitView")
            take(front, Path(folder) / f"template {name}-{width}-{theme}.png")
    shown = front.evaluate("() => app.graphToPrompt().then(({output}) => output)")
    wanted = workflows.load(name)
    assert {node: (one["class_type"], one["inputs"]) for node, one in shown.items()} == {
        node: (one["class_type"], one["inputs"]) for node, one in wanted.items()
    }
    assert any(one["class_type"].startswith("OneGraph") for one in wanted.values())
