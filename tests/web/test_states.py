"""Every state of the tab and of the badges: nothing serious for axe-core, nothing cut off, in both themes.

`pytest tests/web/test_states.py --states FOLDER` also writes a picture of each, at four widths and in both themes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect
from support.page.browser import TAB, Front, axe_findings, too_wide

from .conftest import queueing, show, tell
from .test_badges import WHY
from .test_insert import open_graph, template

if TYPE_CHECKING:
    from playwright.sync_api import Route

LIST = "**/onegraph/graphs?*"
WIDE, NARROW = 1280, 360
PICTURED = (1920, 1280, 800, 400)
JOBS = itertools.count()
BAKE = {"state": "running", "done": 1, "of": 3, "text": "", "compiled": 1, "restored": 0, "prompt_id": ""}


@contextmanager
def answering(front: Front, path: str, answer: Callable[[Route], Any]) -> Iterator[None]:
    front.page.route(path, answer)
    yield
    front.page.unroute(path)


def reopened(front: Front) -> None:
    """Open the tab anew, without waiting for what it shows."""
    front.command(TAB)
    front.page.locator(".og-tab").wait_for(state="detached")
    front.command(TAB)
    front.page.locator(".og-tab").wait_for()


@contextmanager
def listed(front: Front) -> Iterator[str]:
    expect(front.page.locator(".og-row").first).to_be_visible()
    yield ".og-tab"


@contextmanager
def loading(front: Front) -> Iterator[str]:
    with answering(front, LIST, lambda route: None):
        reopened(front)
        expect(front.page.locator(".og-message .og-skeleton").first).to_be_visible()
        yield ".og-tab"


@contextmanager
def empty(front: Front) -> Iterator[str]:
    def answer(route: Route) -> None:
        told = route.fetch().json()
        sums = {name: 0 if isinstance(one, int) else one for name, one in told["totals"].items()}
        sums |= {"states": {}, "budget_bytes": told["totals"]["budget_bytes"], "saved_seconds": 0}
        route.fulfill(json={**told, "entries": [], "total": 0, "totals": sums})

    with answering(front, LIST, answer):
        reopened(front)
        expect(front.page.get_by_role("heading", name="No graph yet")).to_be_visible()
        yield ".og-tab"


@contextmanager
def refused(front: Front) -> Iterator[str]:
    """The server answers with an error, from the begin."""
    answer = {"error": "the graph folder cannot be read: no permission", "code": "unreadable"}
    with answering(front, LIST, lambda route: route.fulfill(status=500, json=answer)):
        reopened(front)
        expect(front.page.locator(".og-banner")).to_contain_text("cannot be read")
        yield ".og-tab"


@contextmanager
def gone(front: Front) -> Iterator[str]:
    """The server answers no more."""
    with answering(front, "**/onegraph/**", lambda route: route.abort()):
        front.page.get_by_role("button", name="Reload").click()
        expect(front.page.locator(".og-banner")).to_contain_text("Showing data from")
        yield ".og-tab"


@contextmanager
def no_match(front: Front) -> Iterator[str]:
    front.page.get_by_role("searchbox").fill("nothing is called so")
    expect(front.page.locator(".og-message")).to_contain_text("No graph matches")
    yield ".og-tab"


@contextmanager
def filtered(front: Front) -> Iterator[str]:
    front.page.get_by_label("State", exact=True).select_option("quarantined")
    expect(front.page.locator(".og-list li")).to_have_count(1)
    yield ".og-tab"


@contextmanager
def detail(front: Front) -> Iterator[str]:
    """All of a graph that is quarantined: why, what can be done, and what is folded at first."""
    with filtered(front):
        front.page.locator(".og-row").first.click()
    for part in front.page.locator(".og-detail summary").all():
        part.click()
    front.page.locator(".og-detail").evaluate("(one) => { one.scrollTop = 0; }")
    expect(front.page.locator(".og-detail [data-action=retry]")).to_be_visible()
    yield ".og-tab"


@contextmanager
def deleting(front: Front) -> Iterator[str]:
    front.page.locator(".og-row").first.click()
    front.page.locator(".og-detail [data-action=delete]").click()
    yield ".og-dialog"


@contextmanager
def pruning(front: Front) -> Iterator[str]:
    front.page.locator("[data-action=prune]").click()
    expect(front.page.locator(".og-dialog .og-plain li").first).to_be_visible()
    yield ".og-dialog"


@contextmanager
def compiling(front: Front) -> Iterator[str]:
    """A node of a prompt that is another page's, one of this page's, and a workflow that is compiled ahead."""
    with queueing(front) as queued:
        prompts = "another page's", queued()
    for prompt in prompts:
        show(front, {"state": "compiling", "progress": 0.404}, prompt)
    bake = {"job": str(next(JOBS)), **BAKE}
    tell(front, "bake", **bake)
    expect(front.page.locator(".og-now")).to_have_count(3)
    yield ".og-tab"
    tell(front, "bake", **{**bake, "state": "cancelled"})
    for prompt in prompts:
        tell(front, "badge", badge=None, prompt_id=prompt)


@contextmanager
def models(front: Front) -> Iterator[str]:
    front.page.get_by_role("tab", name="Models").click()
    expect(front.page.locator(".og-models .og-row").first).to_be_visible()
    yield ".og-tab"


@contextmanager
def workflow_view(front: Front) -> Iterator[str]:
    """A workflow without a node of the pack, some of whose files are not here."""
    open_graph(front, template("image_z_image_turbo"))
    front.page.get_by_role("tab", name="Workflow").click()
    front.page.locator(".og-workflow summary").click()
    yield ".og-tab"


@contextmanager
def dropping(front: Front) -> Iterator[str]:
    front.page.get_by_role("tab", name="Workflow").click()
    front.page.locator(".og-drop").dispatch_event("dragover")
    yield ".og-tab"


@contextmanager
def reasons(front: Front) -> Iterator[str]:
    """Why calls ran uncompiled, which a badge opens."""
    with queueing(front) as queued:
        show(front, {"state": "partly", "eager_calls": 3, "calls": 20, "reasons": [WHY]}, queued())
    front.evaluate("() => app.canvas.select(app.rootGraph.nodes.find((one) => one.type.startsWith('OneGraph')))")
    front.command("OneGraph.ShowReasons")
    expect(front.page.get_by_role("dialog")).to_contain_text(WHY["text"])
    yield ".og-dialog"


STATES = (
    listed, loading, empty, refused, gone, no_match, filtered, detail, deleting, pruning, compiling, reasons,
    models, workflow_view, dropping,
)  # fmt: skip


def take(front: Front, path: Path) -> None:
    front.evaluate("() => app.extensionManager.toast.removeAll()")
    front.page.wait_for_timeout(400)  # what moves comes to rest
    front.page.screenshot(path=path)


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_states(front: Front, workflow: object, theme: str, request: pytest.FixtureRequest) -> None:
    page, folder = front.page, request.config.getoption("--states")
    found: dict[str, list[str]] = {}
    front.set("Comfy.ColorPalette", theme)
    try:
        for state in STATES:
            page.set_viewport_size({"width": WIDE, "height": 800})
            front.show_tab()
            with state(front) as shown:
                page.locator(shown).wait_for()
                found[state.__name__] = axe_findings(page, shown)
                page.set_viewport_size({"width": NARROW, "height": 740})
                found[f"{state.__name__}, narrow"] = too_wide(page, shown)
                for width in PICTURED if folder else ():
                    page.set_viewport_size({"width": width, "height": 800})
                    take(front, Path(folder) / f"{state.__name__}-{width}-{theme}.png")
            page.keyboard.press("Escape")
    finally:
        front.set("Comfy.ColorPalette", "dark")
    assert {name: one for name, one in found.items() if one} == {}
