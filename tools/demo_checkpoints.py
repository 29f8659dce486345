"""Checkpoints for the demo: those that the user names, or small seeded ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from headless import host, models


def fail(sentence: str) -> NoReturn:
    print(f"demo: {sentence}", file=sys.stderr)
    raise SystemExit(1)


def has_text_encoder(checkpoint: Path) -> bool:
    """Whether a .safetensors checkpoint carries a text encoder, by the names in its header."""
    with checkpoint.open("rb") as f:
        header = f.read(int.from_bytes(f.read(8), "little"))
    return any(prefix in header for prefix in (b'"conditioner.', b'"cond_stage_model.'))


def given_checkpoint(variable: str, folder: Path) -> Path | None:
    """A link to the checkpoint an environment variable names, or None when it names none."""
    given = os.environ.get(variable)
    if not given:
        return None
    source = Path(given).expanduser().resolve()
    if not source.is_file() or source.suffix != ".safetensors":
        fail(f"{variable}={given} is no .safetensors file; give the path of an SDXL-class checkpoint.")
    link = folder / f"{variable.lower()}_{source.name}"
    link.unlink(missing_ok=True)
    link.symlink_to(source)
    return link


def checkpoints_for(base: Path, backend: str) -> dict[str, Path]:
    """The checkpoints to render with, below the demo's own models folder so that their graphs stay there too."""
    folder = base / "models" / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    given, refiner = given_checkpoint("CHECKPOINT", folder), given_checkpoint("REFINER", folder)
    if given is None:
        host.boot()
        kind = "tiny_sdxl" if backend == "oneflow" else "small_sdxl"
        given = models.write_checkpoint(kind, folder / f"demo_{kind}.safetensors", seed=1, vae="both")
        small = folder / "demo_tiny_refiner.safetensors"
        refiner = refiner or models.write_checkpoint("tiny_refiner", small, seed=2, vae="both")
    return {"base": given, "refiner": refiner} if refiner else {"base": given}
