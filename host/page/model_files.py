"""The model files of ComfyUI's folders, and which of them have graphs here. No file is opened: names tell."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...graph_cache.disk.listing import Listed
from ...graph_cache.layout import GRAPHS_SUFFIX
from ..comfyui.model_source import model_folders

# ComfyUI's folders of models that nodes of this pack compile.
FOLDERS = ("checkpoints", "diffusion_models", "vae", "controlnet")


@dataclass(frozen=True)
class HostFile:
    """A file.

    Attributes:
        name: as ComfyUI's loaders list it.
        folder: of ComfyUI's, by its name.
        beside: the folder for copies of its graphs.
    """

    name: str
    folder: str
    beside: str


def folders() -> tuple[Path, ...]:
    """Return the folders with such files, extra ones too, beside which graphs may lie."""
    return model_folders(FOLDERS)


def files() -> Iterator[HostFile]:
    """Iterate over the files, by folder and name."""
    import folder_paths

    for folder in FOLDERS:
        for name in folder_paths.get_filename_list(folder):
            full_path = folder_paths.get_full_path(folder, name)
            if full_path is None:
                continue
            path = Path(full_path)
            beside = path.with_name(path.stem + GRAPHS_SUFFIX)
            yield HostFile(name, folder, os.path.abspath(beside))  # noqa: PTH100


def by_checkpoint(entries: Iterable[Listed]) -> dict[str, list[Listed]]:
    """Entries of the home by the `.graphs` folders beside the checkpoints of the models that they served."""
    by_folder = defaultdict(list)
    for one in entries:
        for beside in {model.beside for model in one.models} if not one.beside else ():
            by_folder[beside].append(one)
    return dict(by_folder)
