"""Debian's Chromium, driven headless, and what a front end of ComfyUI looks like in it."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headless import standstill

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"
# Nothing asks the network: the front end is the server's own, and the browser has nothing to look up.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
# The canvas asks for a frame, whatever there is to draw, sixty times a second: that alone takes a tenth of a core.
FEWER_FRAMES = """(() => {
  const [request, cancel] = [window.requestAnimationFrame, window.cancelAnimationFrame].map((one) => one.bind(window));
  const asked = new Map();
  let last = 0;
  window.requestAnimationFrame = (draw) => {
    const id = (last += 1);
    const one = {};
    asked.set(id, one);
    one.timer = setTimeout(() => {
      one.frame = request((time) => {
        asked.delete(id);
        draw(time);
      });
    }, 60);
    return id;
  };
  window.cancelAnimationFrame = (id) => {
    const one = asked.get(id);
    if (!one) return;
    asked.delete(id);
    clearTimeout(one.timer);
    if (one.frame !== undefined) cancel(one.frame);
  };
})();"""
TAB = "Workspace.ToggleSidebarTab.onegraph-graphs"
PATIENCE = 1000 * standstill.PATIENCE / 5  # milliseconds for an element of a page: what it shows is there already


def missing() -> str:
    """Say why no page can be opened here; empty when one can."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed; run make setup"
    if shutil.which(CHROMIUM) is None:
        return f"{CHROMIUM} is not there; install Debian's package chromium, which make setup does for root"
    if importlib.util.find_spec("comfyui_frontend_package") is None:
        return "comfyui-frontend-package is not installed; run make setup"
    return ""


_NUMBERS = itertools.count()
BADGES = (
    "(app.rootGraph ?? app.graph).nodes.flatMap((node) => node.badges)"
    ".filter((one) => one.onegraph).map((one) => one().text).filter((text) => text)"
)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """A browser with an empty profile of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=[*FLAGS])
        try:
            yield browser
        finally:
            browser.close()


class Front:
    """ComfyUI's front end in a page of its own.

    Attributes:
        errors: what went wrong in the page's code, and messages of the pack on the console.
    """

    def __init__(self, browser: Browser, port: int, width: int = 1280, height: int = 800, scale: float = 1) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, device_scale_factor=scale, locale="en-US",
            reduced_motion="reduce",
        )  # fmt: skip
        self.context.add_init_script(FEWER_FRAMES)
        self.context.set_default_timeout(PATIENCE)
        self.page: Page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda line: "onegraph" in line.text.lower() and self.errors.append(line.text))

    def open(self) -> Front:
        """Load the page and wait until its extensions are set up."""
        self.page.goto(self.address, wait_until="domcontentloaded")
        return self.wait_open()

    def wait_open(self) -> Front:
        """Wait until the page's extensions are set up."""
        self.page.wait_for_function(
            "window.app?.extensionManager?.command?.commands?.some((one) => one.id === '" + TAB + "')"
        )
        self.page.wait_for_function("window.app?.canvas?.graph != null")
        return self

    def close(self) -> None:
        self.context.close()

    def evaluate(self, code: str, value: Any = None) -> Any:
        return self.page.evaluate(code, value)

    def until(self, condition: str) -> None:
        """Wait for something that the server brings about, as long as the page hears of progress."""
        heard = "[window.seen?.length, window.jobs?.length]"
        standstill.wait_until(lambda: self.evaluate(condition), lambda: self.evaluate(heard))

    def command(self, name: str) -> None:
        """Run a command of the front end without waiting for its end."""
        self.evaluate("(name) => void app.extensionManager.command.execute(name)", name)

    def set(self, name: str, value: Any) -> None:
        self.evaluate("([name, value]) => app.extensionManager.setting.set(name, value)", [name, value])

    def setting(self, name: str) -> Any:
        return self.evaluate("(name) => app.extensionManager.setting.get(name)", name)

    def show_tab(self) -> None:
        """Open the tab, or what is shown of it anew."""
        if self.page.locator(".og-tab").count():
            self.command(TAB)
            self.page.locator(".og-tab").wait_for(state="detached")
        self.command(TAB)
        self.page.locator(".og-tab:not(.og-gone) .og-totals dl").wait_for()

    def load(self, prompt: dict[str, Any], name: str = "workflow") -> None:
        """Open a workflow in the API format, in a tab of its own.

        The front end changes the graph first and then which workflow is open, and all in the API format have the same
        id: only a name that no other had tells when it is done.
        """
        name = f"{name} {next(_NUMBERS)}"
        self.evaluate("([prompt, name]) => app.loadApiJson(prompt, name)", [prompt, name])
        self.page.wait_for_function(
            """(path) => {
              const open = app.extensionManager.workflow.activeWorkflow;
              return open?.path.endsWith(path) && open.activeState?.id === app.rootGraph.id;
            }""",
            arg=f"/{name}.json",
        )

    def toast(self, text: str) -> None:
        """Wait for a toast with a text, and close all."""
        self.page.locator(".p-toast-message", has_text=text).first.wait_for()
        self.evaluate("() => app.extensionManager.toast.removeAll()")

    def badges(self) -> list[str]:
        """The texts of the pack's badges on the nodes."""
        found: list[str] = self.evaluate(f"() => {BADGES}")
        return found

    def wait_badges(self, *texts: str) -> None:
        """Wait until these are the texts of the pack's badges: which workflow is open changes after its graph."""
        self.page.wait_for_function(f"(texts) => JSON.stringify({BADGES}) === texts", arg=_json(texts))


def axe_findings(page: Page, within: str) -> list[str]:
    """What axe-core finds serious or critical in a part of the page, one line each."""
    spec = importlib.util.find_spec("axe_playwright_python")
    assert spec is not None and spec.origin is not None
    if not page.evaluate("'axe' in window"):
        page.evaluate(Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate(
        "(within) => axe.run(within, {resultTypes: ['violations']}).then((done) => done.violations)", within
    )
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:120] for node in one['nodes'][:3]]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def too_wide(page: Page, within: str) -> list[str]:
    """What is cut off or has to be scrolled sideways in a part of the page that has to fit its width.

    What scrolls in a box of its own, as a wide table may, and what ends in an ellipsis is meant.
    """
    found: list[str] = page.evaluate(
        """(within) => {
          const outer = document.querySelector(within);
          const {right} = outer.getBoundingClientRect();
          const meant = (one) => getComputedStyle(one).overflowX !== 'visible';
          const inBox = (one) => one !== outer && (meant(one) || inBox(one.parentElement));
          const wide = [...outer.querySelectorAll('*')].filter((one) => {
            const box = one.getBoundingClientRect();
            return box.width > 1 && box.right > Math.min(right, innerWidth) + 1 && !inBox(one.parentElement);
          });
          if (document.documentElement.scrollWidth > innerWidth) wide.push(document.documentElement);
          return wide.map((one) => one.outerHTML.slice(0, 160));
        }""",
        within,
    )
    return found
