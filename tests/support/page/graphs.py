"""Graphs to look at: entries of a few bytes, as many and in as many states as a list may have."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from onegraph.common.installed import torch_version
from onegraph.graph_cache.disk.marks import USES_FILE, note_use
from onegraph.graph_cache.key import FORMAT
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store

from ..store.entries import key, new_entry, publish, quarantine

MODELS = ("sd_xl_base_1.0", "dreamshaper_8", "juggernaut_xl_v9", "flux1_dev", "z_image_turbo", "wan2.1_t2v_1.3B")
COMPONENTS = ("unet", "vae_decoder", "controlnet")
MARKUP = "<img src=x onerror=window.markup=1>"
KIB = 1024
STALE = (7, 8)  # by number
QUARANTINED = 9


def fill(store: Store, checkpoints: Path) -> None:
    """Publish eighteen graphs of six checkpoints: one is quarantined, two are stale, one has markup in its label."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate((*MODELS, "no_graph_yet")):
        (checkpoints / f"{name}.safetensors").write_bytes(bytes([number]) * 64)
    for number in range(3 * len(MODELS)):
        name, component = MODELS[number % len(MODELS)], COMPONENTS[number // len(MODELS)]
        source = ModelSource(checkpoints / f"{name}.safetensors", f"{number % len(MODELS):012x}")
        wanted = key(
            component=component,
            architecture=f"{number:02x}",
            dtype="bfloat16",
            target={"device": "cpu", "torch": torch_version()},
            format=1 if number in STALE else FORMAT,
        )
        label = MARKUP if number == 5 else ("any size 64-2048", "1024x1024")[number % 2]
        entry = publish(store, source, wanted, os.urandom((number + 3) * 90 * KIB), new_entry(label))
        note_use(entry.folder, "restored", source)
        if number == QUARANTINED:
            quarantine(store, entry.folder)
            continue
        use(entry.folder, number)


def use(folder: Path, number: int) -> None:
    """Have a graph used some hours ago, some times."""
    (folder / USES_FILE).write_bytes(b"." * (40 - 2 * number))
    used = time.time() - (number + 1) * 7 * 3600
    for path in folder.iterdir():
        os.utime(path, (used, used))


def multiply(store: Store, checkpoints: Path, count: int) -> list[Path]:
    """Copy one graph's folder as often, each a graph for the list; their folders, to be removed."""
    path = checkpoints / "many.safetensors"
    path.write_bytes(b"many")
    source = ModelSource(path, "0" * 12)
    first = publish(store, source, key(architecture="ff")).folder
    note_use(first, "restored", source)
    folders = [first]
    for number in range(count - 1):
        name, _, digest = first.name.rpartition("-")
        folders.append(first.with_name(f"{name}-{int(digest, 16) ^ (number + 1):012x}"))
        shutil.copytree(first, folders[-1], copy_function=os.link)
    return folders
