"""`make demo`: watch the real, headless ComfyUI render through a compiled UNet, restart, and render without compiling.

Environment: CHECKPOINT=path renders with that SDXL-class checkpoint instead of a small seeded one,
BACKEND=inductor|oneflow chooses the engine. Everything it writes is below build/demo.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support import host, models, server, workflows  # noqa: E402

OUT = ROOT / "build" / "demo"
STEPS = 8
SIZE = (512, 512)
OTHER_SIZE = (640, 384)
LONG_PROMPT = "a lighthouse on a cliff at dusk, oil painting, " * 12
LARGEST_DIFFERENCE = 2  # of 255, against eager
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def fail(sentence: str) -> NoReturn:
    print(f"demo: {sentence}", file=sys.stderr)
    raise SystemExit(1)


def has_text_encoder(checkpoint: Path) -> bool:
    """Whether a .safetensors checkpoint carries a text encoder, by the names in its header."""
    with checkpoint.open("rb") as f:
        header = f.read(int.from_bytes(f.read(8), "little"))
    return any(prefix in header for prefix in (b'"conditioner.', b'"cond_stage_model.'))


def checkpoint_for(base: Path) -> Path:
    """The checkpoint to render with, below the demo's own models folder so that its graphs stay there too."""
    folder = base / "models" / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    given = os.environ.get("CHECKPOINT")
    if not given:
        host.boot()
        return models.write_checkpoint("small_sdxl", folder / "demo_small_sdxl.safetensors", seed=1)
    source = Path(given).expanduser().resolve()
    if not source.is_file() or source.suffix != ".safetensors":
        fail(f"CHECKPOINT={given} is no .safetensors file; give the path of an SDXL-class checkpoint.")
    link = folder / source.name
    link.unlink(missing_ok=True)
    link.symlink_to(source)
    return link


class Demo:
    """The queue items of the demo and what they showed."""

    def __init__(self, checkpoint: Path) -> None:
        prompt = workflows.load("txt2img")
        if not has_text_encoder(checkpoint):
            prompt = workflows.without_text_encoder(prompt)
        prompt = workflows.with_inputs(prompt, "CheckpointLoaderSimple", ckpt_name=checkpoint.name)
        prompt = workflows.with_inputs(prompt, "KSampler", steps=STEPS)
        self.prompt = workflows.with_inputs(prompt, "OneGraphCompileModel", backend=os.environ.get("BACKEND") or "auto")
        self.node = workflows.nodes(self.prompt, "OneGraphCompileModel")[0]
        self.eager: dict[str, Any] = {}
        self.differences: list[int] = []
        self.images: list[str] = []
        self.rows: list[tuple[str, ...]] = []
        self.report: dict[str, Any] = {}

    def variant(self, *, size: tuple[int, int] = SIZE, text: str = "", seed: int = 1) -> workflows.Prompt:
        prompt = workflows.with_inputs(self.prompt, "EmptyLatentImage", width=size[0], height=size[1])
        prompt = workflows.with_inputs(prompt, "KSampler", seed=seed)
        if text:
            positive = prompt[workflows.nodes(prompt, "KSampler")[0]]["inputs"]["positive"][0]
            prompt[positive]["inputs"]["text"] = text
        return prompt

    def run(self, s: server.Server, name: str, prompt: workflows.Prompt, reference: str = "") -> server.Outcome:
        """Queue a prompt, save its image, compare it with an eager one, add a row to the table."""
        shown = time.monotonic()

        def show(node: str, text: str) -> None:
            nonlocal shown
            if text.startswith("compiling") and time.monotonic() - shown > 5:
                shown = time.monotonic()
                console.print(f"  [dim]{text}[/dim]")

        console.print(f"[bold]{name}[/bold]")
        outcome = s.run(prompt, seconds=3600, on_text=show)
        if outcome.status != "success":
            fail(f"the queue item '{name}' ended with {outcome.status} ({outcome.error}); see {s.log}.")
        image = outcome.images[0]
        difference = ""
        if reference:
            largest = int(abs(image.astype(int) - self.eager[reference]).max())
            difference = f"{largest}/255"
            self.differences.append(largest)
        else:
            self.eager[name] = image
        self._save(name, image)
        self.report = s.status()["runs"].get(self.node, {}) if self.node in prompt else {}
        step = f"{self.report['step_ms']:.0f} ms" if self.report.get("step_ms") else ""
        text = outcome.text(self.node) or "the workflow without OneGraph"
        self.rows.append((name, f"{outcome.seconds:.1f} s", step, difference, text))
        console.print(f"  {outcome.seconds:.1f} s: {text}")
        return outcome

    def _save(self, name: str, image: Any) -> None:
        from PIL import Image

        slug = name.replace(",", "").replace(" ", "-")
        file = OUT / "images" / f"{len(self.rows):02d}-{slug}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
        self.images.append(str(file.relative_to(ROOT)))

    def table(self) -> Table:
        table = Table(title="One workflow in ComfyUI: eager, compiled, and after a restart")
        for column in ("queue item", "time", "step", "to eager", "what the node says"):
            table.add_column(column, overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table


def main() -> None:
    for stale in ("images", "home", "inductor", "base/output"):
        shutil.rmtree(OUT / stale, ignore_errors=True)
    base = OUT / "base"
    checkpoint = checkpoint_for(base)
    for graphs in checkpoint.parent.glob("*.graphs"):
        shutil.rmtree(graphs)
    (base / "server.log").unlink(missing_ok=True)
    demo = Demo(checkpoint)
    # The compiler's own caches start empty too, so that compile_s is what a first user sees.
    env = {"ONEGRAPH_HOME": str(OUT / "home"), "TORCHINDUCTOR_CACHE_DIR": str(OUT / "inductor")}
    plain, other, longer = demo.variant(), demo.variant(size=OTHER_SIZE), demo.variant(text=LONG_PROMPT)
    seed2 = demo.variant(seed=2)
    measured = workflows.with_inputs(plain, "OneGraphCompileModel", when_missing="eager")

    console.print(f"checkpoint {checkpoint.name}; starting ComfyUI, about 20 s ...")
    with server.running(base, host.comfyui_path(), env=env) as s:
        eager_first = demo.run(s, "eager", workflows.without_onegraph(plain))
        demo.run(s, "eager, other size", workflows.without_onegraph(other))
        demo.run(s, "eager, longer prompt", workflows.without_onegraph(longer))
        demo.run(s, "eager, other seed", workflows.without_onegraph(seed2))
        demo.run(s, "eager, measured by the node", measured, "eager")
        eager_step = demo.report["step_ms"]
        demo.run(s, "compiling", plain, "eager")
        compile_s = demo.report["compile_s"]
        # Another seed in between: ComfyUI answers an unchanged prompt from its cache of results.
        demo.run(s, "compiled, other seed", seed2, "eager, other seed")
        demo.run(s, "compiled, again", plain, "eager")
        compiled_step = demo.report["step_ms"]
        demo.run(s, "compiled, other size", other, "eager, other size")
        demo.run(s, "compiled, longer prompt", longer, "eager, longer prompt")
        compiles_first = s.status()["compiles"]
    console.print("restarting ComfyUI ...")
    with server.running(base, host.comfyui_path(), env=env) as s:
        demo.run(s, "after the restart", plain, "eager")
        restore_s = demo.report["restore_s"]
        demo.run(s, "after the restart, other size", other, "eager, other size")
        compiles_after = s.status()["compiles"]

    report = {
        "eager_first_s": round(eager_first.seconds, 3),
        "eager_step_ms": eager_step and round(eager_step, 2),
        "compile_s": compile_s,
        "compiled_step_ms": compiled_step and round(compiled_step, 2),
        "compiles_first_process": compiles_first,
        "restore_s": restore_s and round(restore_s, 4),
        "compiles_after_restart": compiles_after,
        "sizes_rendered": [f"{w}x{h}" for w, h in (SIZE, OTHER_SIZE)],
        "max_abs_diff_255": max(demo.differences),
        "graph_bytes": sum(f.stat().st_size for f in checkpoint.parent.glob("*.graphs/**/*") if f.is_file()),
        "images": demo.images,
    }
    (OUT / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    console.print(demo.table())
    seeds = abs(demo.eager["eager"].astype(int) - demo.eager["eager, other seed"]).max()
    console.print(f"for scale, another seed differs by {seeds}/255; images: {(OUT / 'images').relative_to(ROOT)}")
    console.print_json(data={k: v for k, v in report.items() if k != "images"})
    if compile_s is None or restore_s is None:
        fail("the UNet did not run compiled; the table says why.")
    console.print(
        f"compiled once in {compile_s:.0f} s, taken up after the restart in {restore_s:.2f} s "
        f"({compile_s / restore_s:.0f} times less), {eager_step / compiled_step:.1f}x eager per step"
    )
    if compiles_after or report["max_abs_diff_255"] > LARGEST_DIFFERENCE:
        fail("a promise was broken: see compiles_after_restart and max_abs_diff_255 above.")


if __name__ == "__main__":
    main()
