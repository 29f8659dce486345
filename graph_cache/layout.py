"""Names and folders: graphs are loaded from the home, `<home>/graphs/<component>/<entry>/`.

A copy of each lies beside the checkpoint, in `<checkpoint stem>.graphs/<model hash>/<component>/<entry>/`. Names are
for people; the manifest alone decides what an entry is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import platformdirs
from blake3 import blake3
from pydantic import TypeAdapter, ValidationError

from ..common.reasons import UnreadableManifest
from .files import is_passing
from .key import GraphKey
from .manifest import MANIFEST_FILE, Manifest
from .model_hash import ModelSource

GRAPHS_SUFFIX = ".graphs"
BROKEN_PREFIX = ".broken-"  # of quarantined entries
_ENTRY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_MOST_LABEL = 16  # characters of the shapes in a name on Windows
_KEY = TypeAdapter(GraphKey)
_MACHINE_ID = Path("/etc/machine-id")
# Below the home:
GRAPHS_FOLDER = "graphs"
STAGING_FOLDER = ".staging"  # what is compiled, copied in or removed
COMPILER_CACHE = "compiler-cache"  # what compiles share, no graphs


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
    expanded = os.path.expanduser(chosen)  # noqa: PTH111 - which would raise
    return Path(os.sep, *Path(expanded).parts[1:]) if Path(expanded).parts[:1] == ("~",) else Path(expanded)


def settings_file(name: str) -> Path | None:
    """Return the path of a file in the user's folder for settings; None for a user who has no home."""
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
    """Leave out hidden names: quarantined entries, staging folders and what is no entry.

    >>> visible(["any-size-float16-inductor", ".broken-any-size", ".owner"])
    ['any-size-float16-inductor']
    """
    return [name for name in names if name[:1] != "."]


def of_digest(names: Iterable[str], digest: str) -> list[str]:
    """Choose the names of entries that promise a key digest, also of quarantined ones, in order."""
    return sorted(name for name in names if f"-{digest}" in name)


def entry_name(key: GraphKey, manifest: Manifest) -> str:
    """Name an entry's folder: `<shapes>-<dtype>-<backend>-<target>-<key digest>[-<code digest>]`."""
    label, target = _slug(manifest.label), [key.target.get(name, "") for name in ("device", "cpu")]
    if os.name == "nt":  # a path has 260 characters there, and checkpoints lie deep
        label, target = label[:_MOST_LABEL].rstrip("-"), []
    target += manifest.at_least.values()  # made with several versions of torch
    name = "-".join(filter(None, [label, key.dtype, key.backend, *target, key.digest]))
    if manifest.code is not None:  # graphs of one key for two versions of the host stand beside each other
        name += f"-{manifest.code.digest}"
    return name


def key_of(manifest: Manifest) -> GraphKey | UnreadableManifest:
    """Return the key of a graph that others may have made, if its values name no other folder than its entry's."""
    with contextlib.suppress(ValidationError):
        key: GraphKey = _KEY.validate_python(manifest.key)
        if key.fields() == manifest.key and _ENTRY_NAME.fullmatch(entry_name(key, manifest)):
            return key
    return UnreadableManifest("its key names no folder")


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")


def beside(source: ModelSource) -> Path | None:
    """Return the folder beside a model's checkpoint that holds a copy of its graphs; None where no file is known."""
    if source.path is None:
        return None
    return source.path.with_name(source.path.stem + GRAPHS_SUFFIX) / source.digest


def locations_in(root: Path) -> list[Path]:
    """List the folders of models, `<stem>.graphs/<model hash>`, that lie in another, such as one of checkpoints."""
    beside_files = [root / name for name in sorted(visible(listed_now(root))) if name.endswith(GRAPHS_SUFFIX)]
    return [folder / name for folder in beside_files for name in sorted(visible(listed_now(folder)))]


def entry_folders(location: Path) -> Iterator[Path]:
    """Iterate over the folders with a manifest in the `<component>/<entry>` folders of one folder."""
    for component in sorted(visible(listed_now(location))):
        for name in sorted(visible(listed_now(location / component))):
            if _may_be_there(location / component / name / MANIFEST_FILE):
                yield location / component / name


def copies_in(root: Path) -> Iterator[Path]:
    """Iterate over the copies of entries beside the files of a folder, such as one of checkpoints."""
    return (folder for location in locations_in(root) for folder in entry_folders(location))


def _may_be_there(path: Path) -> bool:
    """Whether something has that name, or nobody can tell now."""
    try:
        path.lstat()
    except OSError as error:
        return is_passing(error)
    return True
