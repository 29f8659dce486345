"""Time what a new user does: `.venv/bin/python benchmarks/cpu/new_user.py [--model tiny_sdxl] [--side 512]`.

Five paths, in the real ComfyUI and in its page in Chromium: from a clone to the first compiled image with the demo's
model, why a workflow is slow, free disk, take graphs from another machine, remove the pack. Of each: seconds, clicks
(opening a workflow file is one), commands in a shell, and what the user saw last. Prints a table and writes
build/benchmarks/new_user.json; nothing is asserted about times.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

import torch  # noqa: E402
from headless import host, models, server, workflows  # noqa: E402
from playwright.sync_api import Browser, Locator  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from support.page import browser as browsers  # noqa: E402

OUT = ROOT / "build" / "benchmarks"
PACK = "ComfyUI-OneGraph"
SETTINGS = {"Comfy.TutorialCompleted": True, "Comfy.Locale": "en", "Comfy.VueNodes.Enabled": True}
NO_GRAPH = "tiny_sd15.safetensors"  # of another architecture than the model that is compiled
BADGE = "() => app.rootGraph.nodes.some((one) => one.badges.some((two) => two.onegraph && /{}/.test(two().text)))"
MESSAGES = "[role=dialog], [role=alert], [data-testid*=error], .p-toast-message"


@dataclass
class Walk:
    """One path: what it took."""

    path: str
    seconds: float = 0.0
    clicks: int = 0
    commands: int = 0
    saw: str = ""
    began: float = field(default_factory=time.monotonic)

    def click(self, what: Locator) -> None:
        self.clicks += 1
        what.click()

    def command(self, *command: object, home: Path | None = None) -> str:
        """Run a command as the user types it; what it prints."""
        self.commands += 1
        environ = {**os.environ, **({"ONEGRAPH_HOME": str(home)} if home else {})}
        done = subprocess.run([*map(str, command)], env=environ, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
        return done.stdout.strip()

    def end(self, saw: str) -> Walk:
        self.seconds, self.saw = round(time.monotonic() - self.began, 1), " ".join(saw.split())
        Console().print(f"{self.path}: {self.seconds} s")
        return self


class User:
    """A user with a machine: a ComfyUI, a graph folder, a page."""

    def __init__(self, folder: Path, browser: Browser, stack: ExitStack) -> None:
        self.base, self.home = server.prepare_base(folder / "comfyui", server.TESTING), folder / "graphs"
        self.browser, self.stack = browser, stack
        self.server: server.Server
        self.front: browsers.Front

    @property
    def pack(self) -> Path:
        return self.base / "custom_nodes" / PACK

    def start(self) -> None:
        """Start ComfyUI, and open its page."""
        environ = {"ONEGRAPH_HOME": str(self.home), "ONEGRAPH_TESTING_TRUST_SLOW_GRAPHS": "1"}
        running = server.running(self.base, host.comfyui_path(), env=environ, packs=server.TESTING)
        self.server = self.stack.enter_context(running)
        self.server.post("/settings", SETTINGS)
        self.front = browsers.Front(self.browser, self.server.port)
        self.stack.callback(self.front.close)
        self.front.page.goto(self.front.address, wait_until="domcontentloaded")
        self.front.page.wait_for_function("window.app?.canvas?.graph != null")

    def open(self, walk: Walk, workflow: dict[str, Any]) -> None:
        """Open a workflow's file, as dropping it does."""
        walk.clicks += 1
        if "nodes" in workflow:
            self.front.evaluate("(graph) => app.loadGraphData(graph)", workflow)
        else:
            self.front.load(workflow)

    def run(self, walk: Walk, badge: str = "") -> str:
        """Run the open workflow until its image is there; the badge, once it is one of these."""
        before = len(self.server.get("/history"))
        walk.click(self.front.page.get_by_test_id("queue-button"))
        while len(self.server.get("/history")) == before:
            self.front.page.wait_for_timeout(100)
        if badge:
            self.front.page.wait_for_function(BADGE.format(badge))
        return ", ".join(self.front.badges()) if badge else "the image"

    def tab(self, walk: Walk, name: str = "") -> None:
        """Open the tab, and one of its views."""
        if not self.front.page.locator(".og-tab").count():
            walk.click(self.front.page.locator("[class*=side-bar-button][aria-label*=OneGraph]").first)
        if name:
            walk.click(self.front.page.get_by_role("tab", name=name))

    def clone(self, walk: Walk) -> None:
        """Install the pack as the README says."""
        walk.command("git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), self.pack)
        walk.command(sys.executable, "-m", "pip", "install", "--quiet", "-r", self.pack / "requirements.txt")


def prompt(model: str, file: str, side: int, **node: Any) -> workflows.Prompt:
    """The demo's workflow, with Compile Model (OneGraph) where it has inputs."""
    made = workflows.load("txt2img")
    made = made if node else workflows.without_onegraph(made)
    made = workflows.without_text_encoder(made, models.config(model)["context_dim"])
    made = workflows.with_inputs(made, "CheckpointLoaderSimple", ckpt_name=file)
    made = workflows.with_inputs(made, "EmptyLatentImage", width=side, height=side)
    made = workflows.with_inputs(made, "KSampler", steps=8)
    return workflows.with_inputs(made, "OneGraphCompileModel", **node) if node else made


def onegraph(walk: Walk, user: User, *arguments: object) -> str:
    return walk.command(Path(sys.executable).with_name("onegraph"), *arguments, home=user.home)


def first_image(user: User, plain: workflows.Prompt) -> tuple[Walk, dict[str, Any]]:
    walk = Walk("install to the first compiled image")
    user.clone(walk)
    user.start()
    user.open(walk, plain)
    user.tab(walk, "Workflow")
    walk.click(user.front.page.locator("[data-action=insert]"))
    user.front.page.wait_for_function("() => app.rootGraph.nodes.some((one) => one.type === 'OneGraphCompileModel')")
    walk.end(user.run(walk, "compiled|faster"))
    graph: dict[str, Any] = user.front.evaluate("() => app.graphToPrompt().then(({workflow}) => workflow)")
    return walk, graph


def why_slow(user: User, slow: workflows.Prompt) -> Walk:
    user.front.command(browsers.TAB)  # closed, as it may hide the node
    walk = Walk("find why a workflow is slow")
    user.open(walk, slow)
    badge = user.run(walk, "uncompiled")
    walk.click(user.front.page.locator("[data-node-id]", has_text="Compile Model").get_by_text(badge, exact=True))
    dialog = user.front.page.get_by_role("dialog")
    walk.end(dialog.locator(".og-reasons").inner_text())
    user.front.page.keyboard.press("Escape")
    return walk


def free_disk(user: User) -> Walk:
    walk = Walk("free disk")
    user.tab(walk)
    walk.click(user.front.page.locator(".og-row").first)
    walk.click(user.front.page.locator(".og-detail [data-action=delete]"))
    walk.click(user.front.page.locator(".og-dialog footer button").last)
    toast = user.front.page.locator(".p-toast-message").first
    toast.wait_for()
    return walk.end(toast.inner_text())


def from_another_machine(one: User, other: User, graph: dict[str, Any], file: Path) -> Walk:
    """The other machine has ComfyUI with the pack and the same model, and no graph."""
    other.clone(Walk(""))
    other.start()
    walk = Walk("take graphs from another machine")
    onegraph(walk, one, "export", "--to", file)
    key = onegraph(walk, one, "trust", "show")
    onegraph(walk, other, "trust", "add", "alice", key)
    onegraph(walk, other, "import", "--trust", "alice", file)
    other.open(walk, graph)
    return walk.end(other.run(walk, "restored"))


def remove(user: User, graph: dict[str, Any], plain: workflows.Prompt) -> Walk:
    """Without the pack a workflow that has its node is opened, and then the one from before."""
    user.server.stop()
    walk = Walk("remove the pack")
    for path in (user.pack, user.home, *user.base.glob("models/checkpoints/*.graphs")):
        walk.command("rm", "-rf", path)
    user.start()
    user.open(walk, graph)
    message = user.front.page.locator(MESSAGES).first
    message.wait_for()
    saw = message.inner_text()
    user.front.page.keyboard.press("Escape")
    user.open(walk, plain)
    return walk.end(f"{user.run(walk)}; before, of a workflow with the node: {saw}")


def walks(folder: Path, model: str, side: int) -> list[Walk]:
    host.boot()
    file = f"{model}.safetensors"
    plain = prompt(model, file, side)
    slow = prompt("tiny_sd15", NO_GRAPH, 128, when_missing="eager")
    with browsers.launched() as browser, ExitStack() as stack:
        one, other = (User(folder / name, browser, stack) for name in ("one", "other"))
        for user in (one, other):
            for name, family in ((file, model), (NO_GRAPH, "tiny_sd15")):
                models.write_checkpoint(family, user.base / "models/checkpoints" / name)
        first, graph = first_image(one, plain)
        slow_walk = why_slow(one, slow)
        taken = from_another_machine(one, other, graph, folder / "graphs.tar")
        return [first, slow_walk, free_disk(one), taken, remove(one, graph, plain)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Time what a new user does.")
    parser.add_argument("--model", default="small_sdxl", help="of tools/headless/models.py")
    parser.add_argument("--side", type=int, default=512, help="of the images, in pixels")
    options = parser.parse_args()
    if why := browsers.missing():
        raise SystemExit(why)
    with tempfile.TemporaryDirectory() as folder:
        done = walks(Path(folder), options.model, options.side)
    table = Table("path", "seconds", "clicks", "commands", "what the user saw last")
    for one in done:
        table.add_row(one.path, f"{one.seconds:.1f}", str(one.clicks), str(one.commands), one.saw)
    Console().print(table)
    OUT.mkdir(parents=True, exist_ok=True)
    rows = [{name: value for name, value in asdict(one).items() if name != "began"} for one in done]
    facts = {"torch": torch.__version__, "model": options.model, "side": options.side, "cores": os.cpu_count()}
    (OUT / "new_user.json").write_text(json.dumps({**facts, "paths": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
