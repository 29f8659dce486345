"""The model files of ComfyUI's folders, and which of them have graphs here. No file is opened: names tell."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...graph_cache.disk.listing import Listed
from ...graph_cache.layout import GRAPHS_SUFFIX
from ...graph_cache.trust import ownership
from ..comfyui.model_source import model_folders

# ComfyUI's folders of models that nodes of this pack compile.
FOLDERS = ("checkpoints", "diffusion_models", "vae", "controlnet")


@dataclass(frozen=True)
class ModelFile:
    """A file.

    Attributes:
        name: as ComfyUI's loaders list it.
        folder: of ComfyUI's, by its name.
        beside: the folder that its graphs lie in.
        can_be_written: whether graphs are put there.
    """

    name: str
    folder: str
    beside: str
    can_be_written: bool


def folders() -> tuple[Path, ...]:
    """The folders with such files, extra ones too, beside which graphs may lie."""
    return model_folders(FOLDERS)


def files() -> Iterator[ModelFile]:
    """Iterate over the files, by folder and name."""
    import folder_paths

    writable: dict[Path, bool] = {}
    for folder in FOLDERS:
        for name in folder_paths.get_filename_list(folder):
            found = folder_paths.get_full_path(folder, name)
            if found is None:
                continue
            path = Path(found)
            if path.parent not in writable:
                writable[path.parent] = ownership.is_writable(path.parent)
            beside = path.with_name(path.stem + GRAPHS_SUFFIX)
            yield ModelFile(name, folder, os.path.abspath(beside), writable[path.parent])  # noqa: PTH100


def by_location(entries: Iterable[Listed]) -> dict[str, list[Listed]]:
    """Entries by the `.graphs` folder that they lie in."""
    found = defaultdict(list)
    for one in entries:
        location = os.path.dirname(os.path.dirname(one.folder))  # noqa: PTH120 - there may be thousands
        found[os.path.dirname(location)].append(one)  # noqa: PTH120
    return dict(found)
