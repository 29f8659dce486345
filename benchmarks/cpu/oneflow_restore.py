"""OneFlow: a first build against a restore, by component: `.venv/bin/python benchmarks/cpu/oneflow_restore.py`.

First build: capture, lowering, and the first call, for which OneFlow plans and allocates. Restore: load and first call.
Machines are noisy, so only ratios within a row count. Prints a table and writes build/benchmarks/oneflow_restore.json.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from headless import host, models  # noqa: E402

OUT = ROOT / "build" / "benchmarks"
LATENT = 16


def components() -> list[tuple[str, Any, Any, dict[str, Any]]]:
    """(name, family, module, inputs) of what is built."""
    import torch
    from comfy.taesd.taesd import TAESD

    from onegraph.host.families import DECODER, ENCODER, MODELS

    checkpoint = models.write_checkpoint("tiny_sdxl", OUT / "oneflow_both.safetensors", vae="both")
    kl = host.load_vae(checkpoint).first_stage_model
    z, pixels = torch.zeros(1, 4, LATENT, LATENT), torch.zeros(1, 3, 8 * LATENT, 8 * LATENT)
    x, context, y = torch.zeros(2, 4, LATENT, LATENT), torch.zeros(2, 77, 2048), torch.zeros(2, 2816)
    given = {"x": x, "timesteps": torch.zeros(2), "context": context, "y": y}
    small = host.load(checkpoint).model.diffusion_model
    taesd = TAESD(latent_channels=4)
    taesd.load_state_dict({k: v.float() for k, v in models.seeded(taesd.state_dict(), 5).items()})

    return [
        ("UNet, small SDXL class", MODELS[0], small, given),
        ("VAE decoder", DECODER, kl, {"x": z}),
        ("VAE encoder", ENCODER, kl, {"x": pixels}),
        ("TAESD decoder", DECODER, taesd, {"x": z}),
    ]


def main() -> None:
    host.boot()
    import torch
    from rich.console import Console
    from rich.table import Table

    from onegraph.backends import get
    from onegraph.compiler import export
    from onegraph.host.capture import compile_client

    backend, cpu, rows = get("oneflow"), torch.device("cpu"), []
    for name, family, module, given in components():
        widest, one = (family.ranged(module, given, shapes) for shapes in ("any size", "exact"))
        exact, label, sizes = one.shapes, one.label, one.sizes
        wrapped = compile_client.wrap(family.component, module, [*given])
        weights = {**dict(wrapped.named_parameters()), **dict(wrapped.named_buffers())}
        inputs = export.example_inputs(exact, sizes, cpu)
        with tempfile.TemporaryDirectory() as folder:
            seconds = {}
            for kind in ("first", "restored"):
                started = time.perf_counter()
                if kind == "first":
                    with backend.capture_settings():
                        exported = export.capture(wrapped, widest.shapes, sizes, cpu)
                        backend.compile(exported, inputs, Path(folder))
                built = time.perf_counter() - started
                runner = backend.load(Path(folder), cpu)
                runner.bind({n: weights[n] for n in runner.constant_names()})
                bound = time.perf_counter() - started
                runner(*inputs)
                seconds[kind] = {"built": built, "bound": bound, "called": time.perf_counter() - started}
                runner.close()
            rows.append({"component": name, "shapes": label, **seconds})
    table = Table("component", "shapes", "first build s", "restored s", "of it plan and set-up s", "restored / first")
    for row in rows:
        first, restored = row["first"]["called"], row["restored"]["called"]
        plan = row["restored"]["bound"]
        table.add_row(
            row["component"], row["shapes"], f"{first:.1f}", f"{restored:.1f}", f"{plan:.1f}", f"{restored / first:.2f}"
        )
    Console().print(table)
    report = {"torch": torch.__version__, "python": platform.python_version(), "rows": rows}
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "oneflow_restore.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
