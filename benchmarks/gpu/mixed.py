"""The mixed section of `benchmarks/gpu`: twenty prompts with changing checkpoints and LoRAs in the real server.

Each process runs the same prompts: without the nodes, and with them after an earlier process has compiled. So what a
change costs with the nodes beside what it costs without is what of it is the pack's own.
"""

from __future__ import annotations

import statistics
from typing import Any

from .common import Bench
from .server import one, prompt_of

PROMPTS = 20
_EACH = 5  # prompts by one checkpoint before it changes
_STEPS = 20


def _prompts(bench: Bench) -> list[tuple[str, Any]]:
    """What changes before each prompt, and the prompt."""
    from headless import models, workflows

    device = "cuda" if bench.device == "cuda" else "cpu"
    first = bench.checkpoint(bench.model)
    second = first.with_name("bench_other.safetensors")
    models.write_checkpoint(bench.model, second, seed=2, vae="both", device=device)
    folder = first.parents[1] / "loras"
    loras = [models.write_lora(bench.model, folder / f"bench_{n}.safetensors", n, 0.3).name for n in (3, 4)]
    found: list[tuple[str, Any]] = []
    plain = workflows.with_inputs(prompt_of(bench, _STEPS), "KSampler", steps=_STEPS)
    for number in range(PROMPTS):
        turn, at = divmod(number, _EACH)
        prompt = workflows.with_checkpoints(plain, (first, second)[turn % 2].name)
        if at >= 2:  # two without, two with the first one, one with the second
            prompt = workflows.with_lora(prompt, loras[at == _EACH - 1], 0.8)
        change = "checkpoint" if at == 0 and number else "start" if not number else "LoRA" if at in (2, 4) else "seed"
        found.append((change, workflows.with_inputs(prompt, "KSampler", seed=number)))
    return found


def run(bench: Bench) -> None:
    """Compile in one process; then all prompts without the nodes and with them, in a process each."""
    from headless import server, workflows

    base = server.prepare_base(bench.work / "base")
    prompts = _prompts(bench)

    def compiling(found: dict[str, Any], running: Any) -> None:
        found["seconds"] = [round(running.run(prompts[0][1], seconds=bench.left()).seconds, 2) for _ in range(2)]

    bench.put("mixed", compiling=one(bench, "mixed-compiling", (), compiling, base))
    images: dict[str, list[Any]] = {}
    for way in ("uncompiled", "nodes"):

        def queue(found: dict[str, Any], running: Any, way: str = way) -> None:
            rows, images[way] = [], []
            for change, prompt in prompts:
                asked = prompt if way == "nodes" else workflows.without_onegraph(prompt)
                outcome = running.run(asked, seconds=bench.left())
                nodes = {prompt[node]["class_type"]: round(s, 3) for node, s in outcome.seconds_of.items()}
                rows.append([change, outcome.status, round(outcome.seconds, 3), nodes])
                images[way] += outcome.images[-1:]
            found |= {"prompts": rows, "seconds": round(sum(row[2] for row in rows), 2)}
            for change in dict.fromkeys(row[0] for row in rows):
                found[change] = round(statistics.median(row[2] for row in rows if row[0] == change), 3)

        found = one(bench, f"mixed-{way}", (), queue, base)
        bench.put("mixed", **{way: found})
        bench.say(f"{way}: " + str({k: v for k, v in found.items() if k not in ("prompts", "log_marks")}))
    pairs = zip(images["uncompiled"], images["nodes"], strict=True)
    bench.put("mixed", largest_of_255=[int(abs(a.astype(int) - b.astype(int)).max()) for a, b in pairs])
