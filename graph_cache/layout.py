"""Where entries live: `<checkpoint stem>.graphs/<model hash>/<component>/<entry>/` beside the checkpoint.

Graphs of a model whose checkpoint is unknown, or whose folder cannot be written, go below the user's graph folder:
`<home>/<model hash>/<component>/<entry>/`. Names are for people; the manifest alone decides what an entry is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from blake3 import blake3

from .files import is_passing
from .key import GraphKey
from .manifest import MANIFEST_FILE, Manifest
from .model_hash import ModelSource

GRAPHS_SUFFIX = ".graphs"
STAGING_PREFIX = ".staging-"
BROKEN_PREFIX = ".broken-"  # of quarantined entries
_MACHINE_ID = Path("/etc/machine-id")
COMPILER_CACHE = "compiler-cache"  # below the user's folder: what compiles share, no graphs
COPIES_FOLDER = ".loading-copies"  # below the user's folder
COMPILING_FOLDER = ".compiling"  # below the user's folder: graphs that are not in the store yet


def user_folder() -> Path:
    """Return the user's graph folder: `ONEGRAPH_HOME`, or a folder in the platform's cache folder.

    A `~` is this user's home, which no shell replaces in a container's settings. A user without one has what a
    container gives such users: `/`.
    """
    chosen = os.environ.get("ONEGRAPH_HOME")
    if not chosen:
        try:
            chosen = platformdirs.user_cache_dir("onegraph", appauthor=False)
        except RuntimeError:  # there is no home
            chosen = "~/.cache/onegraph"
    found = os.path.expanduser(chosen)  # noqa: PTH111 - which would raise
    return Path(os.sep, *Path(found).parts[1:]) if Path(found).parts[:1] == ("~",) else Path(found)


def settings_file(name: str) -> Path | None:
    """Give the path of a file in the user's folder for settings; None for a user who has no home."""
    try:
        folder = Path(platformdirs.user_config_dir("onegraph", appauthor=False))
    except RuntimeError:
        return None
    return folder / name if folder.is_absolute() else None


@functools.cache
def machine_id() -> str:
    """Name this machine, since several may share one store: also two of one name, where the system numbers them."""
    number = ""
    with contextlib.suppress(OSError):
        number = _MACHINE_ID.read_text(errors="replace").strip()
    named = f"{platform.node()} {platform.machine()} {os.cpu_count()} {number}".rstrip()
    return blake3(named.encode()).hexdigest(length=6)


def listed(folder: Path) -> list[str]:
    """List the names in a folder, in no order; none where it is missing or closed to this user.

    Raises:
        OSError: it cannot be listed now, so that nobody knows what is in it.
    """
    try:
        return os.listdir(folder)  # noqa: PTH208 - thousands of paths take ten times as long as their names
    except OSError as error:
        # A user whom somebody else's folder is closed to has graphs in the own one.
        if is_passing(error) and not isinstance(error, PermissionError):
            raise
        return []


def listed_now(folder: Path) -> list[str]:
    """List the names in a folder, in no order; none where it cannot be listed."""
    try:
        return listed(folder)
    except OSError:
        return []


def visible(names: Iterable[str]) -> list[str]:
    """Leave out hidden names: quarantined entries, staging folders and what is no entry."""
    return [name for name in names if name[:1] != "."]


def of_digest(names: Iterable[str], digest: str) -> list[str]:
    """Choose the names of entries that promise a key digest, also of quarantined ones, in order."""
    return sorted(name for name in names if f"-{digest}" in name)


def entry_name(key: GraphKey, manifest: Manifest) -> str:
    """Name an entry's folder: `<shapes>-<dtype>-<backend>-<target>-<key digest>[-<code digest>]`."""
    target = "-".join(key.target.get(k, "") for k in ("device", "cpu") if key.target.get(k))
    name = f"{_slug(manifest.label)}-{key.dtype}-{key.backend}-{target}-{key.digest}"
    if manifest.code is not None:  # graphs of one key for two versions of the host stand beside each other
        name += f"-{manifest.code.digest}"
    return name


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")


@dataclass(frozen=True)
class Layout:
    """The folders that one user's graphs may live in. Lists folders and creates none.

    Attributes:
        home: the user's graph folder.
    """

    home: Path

    def locations(self, source: ModelSource) -> list[Path]:
        """List the folders in which a model's graphs may live, best first."""
        at_home = self.home / source.digest
        if source.path is None:
            return [at_home]
        return [source.path.with_name(source.path.stem + GRAPHS_SUFFIX) / source.digest, at_home]

    def other_models(self, source: ModelSource, neighbours: Iterable[Path]) -> Iterator[Path]:
        """Iterate over the locations of other models' graphs.

        Args:
            source: the model whose own locations are left out.
            neighbours: folders with checkpoints, searched besides the user's folder and the model's own.
        """
        roots = list(neighbours)
        if source.path is not None:
            roots.append(source.path.parent)
        own = set(self.locations(source))
        seen: set[Path] = set()
        for root in [self.home, *dict.fromkeys(roots)]:
            for model in self._models(root):
                if model in own or model in seen:
                    continue
                seen.add(model)
                yield model

    def entry_folders(self, neighbours: Iterable[Path] = ()) -> Iterator[Path]:
        """Iterate over every folder with a manifest, in the user's folder and beside checkpoints in `neighbours`."""
        for root in [self.home, *neighbours]:
            yield from self.entry_folders_in(root)

    def entry_folders_in(self, root: Path) -> Iterator[Path]:
        """Iterate over the folders with a manifest in the user's folder, or in the `.graphs` folders of another."""
        for model in self._models(root):
            for component in [model / name for name in sorted(visible(listed_now(model)))]:
                for name in sorted(visible(listed_now(component))):
                    if _may_be_there(component / name / MANIFEST_FILE):
                        yield component / name

    def _models(self, root: Path) -> list[Path]:
        """List the folders of models below the user's folder, or beside the checkpoints in another."""
        names = sorted(visible(listed_now(root)))
        if root == self.home:
            return [root / name for name in names]
        beside = [root / name for name in names if name.endswith(GRAPHS_SUFFIX)]
        return [folder / name for folder in beside for name in sorted(visible(listed_now(folder)))]


def _may_be_there(path: Path) -> bool:
    """Whether something has that name, or nobody can tell now."""
    try:
        path.lstat()
    except OSError as error:
        return is_passing(error)
    return True
