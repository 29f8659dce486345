"""`make demo`: watch the real, headless ComfyUI render through compiled graphs, restart, and render without compiling.

SDXL base, refiner and one compiled VAE for both, an image read by the VAE's encoder, and a text.

Environment variables:
    CHECKPOINT: path of an SDXL-class checkpoint to render with instead of a small seeded one.
    REFINER: path of a refiner; a CHECKPOINT without it renders by the base alone.
    BACKEND: inductor or oneflow.
    VIDEO: 1 also decodes videos, whose eight kinds of blocks take two cores minutes to compile.

OneFlow on a CPU is slower than no compiler. The pack would measure that at the first use and run uncompiled, so the
demo turns this check off and renders at small sizes, to show that the images are right. All output is below build/demo;
the page to look at is report.html there.
"""

from __future__ import annotations

import json
import os
import shutil

import demo_report
from demo_checkpoints import checkpoints_for, fail
from demo_prompts import decoding, with_when_missing
from demo_queue import BACKEND, INPUT_SIDE, OTHER_SIZE, OUT, ROOT, SIZE, TIMES, Demo, console
from headless import media, workflows

LONG_PROMPT = "a lighthouse on a cliff at dusk, oil painting, " * 12
LARGEST_DIFFERENCE = 2  # of 255, against the uncompiled models


def main() -> None:
    load = round(os.getloadavg()[0], 2)  # of others: nothing of the demo runs yet
    for stale in ("images", "home", "inductor", "base/output"):
        shutil.rmtree(OUT / stale, ignore_errors=True)
    base = OUT / "base"
    checkpoints = checkpoints_for(base, BACKEND)
    folder = checkpoints["base"].parent
    for graphs in folder.parent.glob("*/*.graphs"):
        shutil.rmtree(graphs)
    media.write_video_vae(base / "models" / "vae" / media.VIDEO_VAE)
    (base / "server.log").unlink(missing_ok=True)
    demo = Demo(checkpoints)
    # As where ComfyUI has run before: Python keeps the bytecode of what it imports, whoever told it not to.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(ROOT / "build" / "pycache"))
    # The compiler's own caches start empty too, so that compile_s is what a first user sees.
    env = {"ONEGRAPH_HOME": str(OUT / "home"), "TORCHINDUCTOR_CACHE_DIR": str(OUT / "inductor")}
    if BACKEND == "oneflow":
        env["ONEGRAPH_TESTING_TRUST_SLOW_GRAPHS"] = "1"
    plain, other, longer = demo.variant(), demo.variant(size=OTHER_SIZE), demo.variant(text=LONG_PROMPT)
    seed2 = demo.variant(seed=2)

    console.print(f"{', '.join(f'{role} {file.name}' for role, file in checkpoints.items())}; starting ComfyUI ...")
    with demo.process("first process", base, env) as s:
        eager_first = demo.run(s, "uncompiled", workflows.without_onegraph(plain), how="eager")
        (base / "input").mkdir(exist_ok=True)
        demo.write_inputs(base / "input")
        demo.run(s, "uncompiled, other size", workflows.without_onegraph(other))
        demo.run(s, "uncompiled, longer prompt", workflows.without_onegraph(longer))
        demo.run(s, "uncompiled, other seed", workflows.without_onegraph(seed2), how="eager")
        demo.run(s, "uncompiled, measured by the nodes", with_when_missing(plain, "eager"), "uncompiled", how="eager")
        for name, prompt in demo.img2img.items():
            eager = with_when_missing(prompt, "eager")
            demo.run(s, f"uncompiled, {name}", eager, how="eager", timed=("encoder",))
        for number in range(2, TIMES + 1):  # a run before measured one
            eager = decoding(with_when_missing(plain, "eager"), number)
            demo.run(s, f"uncompiled, decoding {number}", eager, how="eager", timed=("decoder",))
        for component, prompts in demo.media.items():
            for name, prompt in prompts.items():
                eager = workflows.without_onegraph(prompt)
                demo.run(s, f"uncompiled, {name}", eager, how="eager", timed=(component,))
        demo.run(s, "compiling", plain, "uncompiled")
        demo.run(s, "compiling, img2img", demo.img2img["img2img"], "uncompiled, img2img")
        # Another seed in between: ComfyUI answers an unchanged prompt from its cache of results.
        demo.run(s, "compiled, other seed", seed2, "uncompiled, other seed", how="compiled")
        demo.run(s, "compiled, again", plain, "uncompiled", how="compiled")
        for name, prompt in demo.img2img.items():
            demo.run(s, f"compiled, {name}", prompt, f"uncompiled, {name}")  # the first ones are compared and timed
        for prompts in demo.media.values():
            for (name, prompt), what in zip(prompts.items(), ("compiling", "compiled", "compiled"), strict=True):
                demo.run(s, f"{what}, {name}", prompt, f"uncompiled, {name}")  # the second one is compared and timed
        demo.run(s, "compiled, other size", other, "uncompiled, other size")
        demo.run(s, "compiled, longer prompt", longer, "uncompiled, longer prompt")
        compiles_first = s.status()["compiles"]
    compile_s = demo.compile_s
    demo.restore_s = {}
    console.print("restarting ComfyUI ...")
    with demo.process("after the restart", base, env) as s:
        demo.run(s, "after the restart, other size", other, "uncompiled, other size")
        for name, prompt in demo.img2img.items():
            again = f"after the restart, {name}"
            demo.run(s, again, prompt, f"uncompiled, {name}", how="compiled", timed=("encoder",))
        demo.run(s, "after the restart", plain, "uncompiled", how="compiled")
        for component, prompts in demo.media.items():
            for name, prompt in prompts.items():
                again = f"after the restart, {name}"
                demo.run(s, again, prompt, f"uncompiled, {name}", how="compiled", timed=(component,))
        compiles_after = s.status()["compiles"]
    restore_s = {component: round(seconds, 4) for component, seconds in demo.restore_s.items()}

    report = {
        "eager_first_s": round(eager_first.seconds, 3),
        "compiles_first_process": compiles_first,
        "compiles_after_restart": compiles_after,
        "sizes_rendered": [f"{w}x{h}" for w, h in (SIZE, OTHER_SIZE)],
        "size_encoded": f"{INPUT_SIDE}x{INPUT_SIDE}",
        "max_abs_diff_255": max(i["largest_difference"] for i in demo.items if i["largest_difference"] is not None),
        "graph_bytes": sum(f.stat().st_size for f in folder.parent.glob("*/*.graphs/**/*") if f.is_file()),
        "restore_all_s": round(sum(restore_s.values()), 4),
        "images": demo.images,
    }
    for component, (calls, starts) in demo_report.FIELDS.items():
        report |= dict(zip(calls, (demo.times.median(component, how) for how in ("eager", "compiled")), strict=True))
        report |= dict(zip(starts, (of.get(component) for of in (compile_s, restore_s)), strict=True))
    report |= demo_report.surroundings(BACKEND, {role: file.name for role, file in checkpoints.items()})
    report["random_weights"] = not os.environ.get("CHECKPOINT")
    report |= {"samples_ms": demo.times.samples, "load_average": load, "cores": os.cpu_count()}
    report |= {"processes": demo.processes, "queue_items": demo.items}
    (OUT / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    page = demo_report.write(report, ROOT, OUT / "report.html")
    console.print(demo.table())
    seeds = max(
        abs(demo.eager["uncompiled"][k].astype(int) - v).max() for k, v in demo.eager["uncompiled, other seed"].items()
    )
    console.print(f"for scale, another seed differs by {seeds}/255; images: {(OUT / 'images').relative_to(ROOT)}")
    console.print_json(data={k: v for k, v in report.items() if k not in demo_report.LONG})
    eager_only = [
        component for component in demo.components if component not in compile_s or component not in restore_s
    ]
    if eager_only:
        fail(f"{', '.join(eager_only)}: not compiled, or not restored after the restart; the table shows why.")
    everything, restored = sum(compile_s.values()), sum(restore_s.values())
    console.print(
        f"compiled once in {everything:.0f} s ({', '.join(f'{p} {compile_s[p]:.0f}' for p in demo.components)}), "
        f"restored after the restart in {restored:.2f} s ({everything / restored:.0f} times less)"
    )
    console.print(f"beside the uncompiled models: {demo_report.speeds_text(report)}")
    if busy := demo_report.busy_text(report):
        console.print(f"[yellow]{busy}[/yellow]")
    console.print(f"to look at: {page.relative_to(ROOT)}")
    other_texts = [item["name"] for item in demo.items if item["same_text"] is False]
    if compiles_after or report["max_abs_diff_255"] > LARGEST_DIFFERENCE or other_texts:
        fail("a promise was broken: see compiles_after_restart and max_abs_diff_255 above, and texts in the table.")


if __name__ == "__main__":
    main()
