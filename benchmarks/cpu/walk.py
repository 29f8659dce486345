"""The pack's own way of a call as data: `.venv/bin/python benchmarks/cpu/walk.py`.

Counts what of the pack runs in one step of a UNet, in one call of a block, in one decode of a VAE, and in a first step
after a restart, all by graphs from the store:

* frames: Python functions that were entered,
* files: that they are defined in,
* climbs: calls from a package to one that stands above it in CONTRIBUTING.md's table.

Counts do not depend on the machine, the microseconds beside them (of this thread, the fastest of some rounds) do.
Small models are compiled first where the folder has no graphs of them. Prints a table and writes
build/benchmarks/walk.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from headless import host, models  # noqa: E402

OUT = ROOT / "build" / "benchmarks"
_ROWS = [line.split("|")[1].strip(" `") for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if "|" in line]
# Later tables name some of them again.
FLOORS = {
    name: -number for number, name in reversed([*enumerate(_ROWS)]) if name and (ROOT / name / "__init__.py").is_file()
}


@dataclass
class Walk:
    """What of the pack ran."""

    frames: int = 0
    files: Counter[str] = field(default_factory=Counter)
    climbs: Counter[str] = field(default_factory=Counter)

    def less(self, other: Walk) -> Walk:
        """What this one has more than another."""
        return Walk(self.frames - other.frames, self.files - other.files, self.climbs - other.climbs)

    def to_json(self) -> dict[str, Any]:
        climbs = sum(self.climbs.values())
        return {"frames": self.frames, "files": len(self.files), "climbs": climbs}


def walked(call: Callable[[], object]) -> Walk:
    """Run a call, and note what of the pack runs in it, in this thread."""
    walk, paths = Walk(), dict[str, str]()

    def path_of(frame: FrameType) -> str:
        name = frame.f_code.co_filename
        if name not in paths:
            path = Path(name)
            inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in FLOORS
            paths[name] = path.relative_to(ROOT).as_posix() if inside else ""
        return paths[name]

    def entered(frame: FrameType, event: str, _: Any) -> None:
        path = path_of(frame) if event == "call" else ""
        if not path:
            return
        walk.frames += 1
        walk.files[path] += 1
        caller = frame.f_back
        while caller is not None and not path_of(caller):
            caller = caller.f_back
        above = path_of(caller) if caller is not None else ""
        if above and FLOORS[above.partition("/")[0]] < FLOORS[path.partition("/")[0]]:
            walk.climbs[f"{above} -> {path}:{frame.f_code.co_name}"] += 1

    sys.setprofile(entered)
    try:
        call()
    finally:
        sys.setprofile(None)
    return walk


def fastest(call: Callable[[], object], rounds: int) -> float:
    """Milliseconds of this thread."""
    found = []
    for _ in range(rounds):
        began = time.thread_time()
        call()
        found.append(1e3 * (time.thread_time() - began))
    return min(found)


def restarted(home: Path) -> Any:
    """A registry as a new process has it."""
    from onegraph.graph_cache.store import Store
    from onegraph.runtime.obtain.registry import Registry
    from onegraph.runtime.policy import ANY_SPEED

    return Registry(Store(home), policy=ANY_SPEED)


def walks(rounds: int) -> dict[str, Any]:
    """The walks by what is done."""
    import torch

    from onegraph.host.calls import model_hook
    from onegraph.host.calls.vae import hook as vae_hook
    from onegraph.runtime.obtain import registry

    home = OUT / "walk"
    path = models.write_checkpoint("tiny_sdxl", OUT / "walk_sdxl.safetensors")
    rows: dict[str, Any] = {}

    def note(name: str, walk: Walk, milliseconds: float | None = None) -> None:
        rows[name] = {**walk.to_json(), "ms": milliseconds, "climbing": dict(walk.climbs)}

    fast = model_hook.compile_model(host.load(path), model_hook.ModelNodeOptions(backend="inductor"))[0]
    vae = vae_hook.compile_vae(host.load_vae(path), vae_hook.VaeNodeOptions(dynamic_resolution="any size"), None)[0]
    latent = torch.randn(1, 4, 16, 16)
    with registry.using(restarted(home)), torch.inference_mode():
        host.sample(fast)  # compiles what the folder lacks
        vae.decode(latent)
    with registry.using(restarted(home)), torch.inference_mode():
        note("UNet, first step after a restart", walked(lambda: host.sample(fast, steps=1)))
        host.sample(fast, steps=3)  # compared with eager, the first times
        two, five = partial(host.sample, fast, steps=2), partial(host.sample, fast, steps=5)
        milliseconds = fastest(five, rounds) - fastest(two, rounds)
        more = walked(five).less(walked(two))
        step = Walk(more.frames // 3, more.files, Counter({one: -(-n // 3) for one, n in more.climbs.items()}))
        note("UNet, one step", step, milliseconds / 3)
        for _ in range(3):
            vae.decode(latent)
        note("VAE, one decode", walked(lambda: vae.decode(latent)), fastest(lambda: vae.decode(latent), rounds))
    with registry.using(restarted(home)), torch.inference_mode():
        step_of_blocks = block_model_step()
        if not [step_of_blocks() for _ in range(4)][-1]:
            raise SystemExit("the blocks run uncompiled")
        note("12 blocks, one step", walked(step_of_blocks), fastest(step_of_blocks, rounds))
    return rows


def block_model_step() -> Callable[[], bool]:
    """A call of a model with blocks like FLUX's; whether graphs served it."""
    import block_model

    from onegraph.runtime.calls.run import Run
    from onegraph.runtime.calls.session import BlockRun
    from onegraph.runtime.graphs.binding import Held
    from onegraph.runtime.guards.guard_cache import GuardCache

    model, (x, text, model_options) = block_model.model(), block_model.call()
    client: Any = block_model.Client()
    run = Run(held=Held())
    blocks = BlockRun(client, run, model, GuardCache())

    def step() -> bool:
        with blocks.call():
            model(x, text, model_options)
        return run.served

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description="The pack's own way of a call.")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    host.boot()
    OUT.mkdir(parents=True, exist_ok=True)
    rows = walks(options.rounds)
    (OUT / "walk.json").write_text(json.dumps(rows, indent=1) + "\n")
    from rich.console import Console
    from rich.table import Table

    table = Table("", "frames", "files", "climbs", "ms, all of it")
    for name, row in rows.items():
        milliseconds = "" if row["ms"] is None else f"{row['ms']:.2f}"
        table.add_row(name, *(str(row[one]) for one in ("frames", "files", "climbs")), milliseconds)
    Console().print(table)


if __name__ == "__main__":
    main()
