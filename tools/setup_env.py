"""Make the whole development environment with one command: `python3 tools/setup_env.py`, or `make setup`.

It makes `.venv` in the repository root with exactly what the lock files under `requirements/` name and the repository
itself (editable), and unpacks a ComfyUI to test against. uv does the work: the one on PATH, else one that pip puts into
build/uv. Three wishes shaped it:

* Nothing unpinned: every download is checked against a hash that stands in the repository, and nothing is built.
* Nothing half done: a stamp names what a finished set-up was made from. Without it `.venv` is made again, mostly from
  uv's cache; with it a set-up is recognised in a fraction of a second, so `make test` can always begin with it.
* No riddles: a failure ends in one line that says what to do, below what the failing program itself printed.

CONTRIBUTING.md lists the environment variables. It runs before anything is installed, by any Python from 3.8, so it and
setup_host use the standard library only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Iterable, Mapping

from setup_host import SetupError, fetch_host, has_host, host_version, run, say, user_comfyui

PREFERRED = "3.10"  # the only version that both OneFlow 0.9.0 and ComfyUI 0.30.0 run on
SUPPORTED = ">=3.10,<3.14"
NEEDED_GB = 12  # everything unpacked; uv links from its cache, so that a second clone takes 2
LOCKS = ("bootstrap", "host")
ONEFLOW_LOCKS = ("oneflow", "oneflow-cuda")
CHROMIUM = Path("/usr/bin/chromium")


def set_up(root: Path, environ: Mapping[str, str]) -> None:
    """Make what is missing and note it in the stamp; say what is there. Raises SetupError."""
    if platform.system() != "Linux":
        raise SetupError(
            f"The lock files are for Linux, and this is {platform.system()}. To use the pack here, install "
            "requirements.txt into ComfyUI's own environment; to develop it, use Linux or WSL."
        )
    comfyui = user_comfyui(environ)
    place, whole = wanted(root, environ)
    if read_stamp(root) != [place, whole] or not (comfyui or has_host(root)):
        import fcntl  # not on Windows, which has been refused by now

        (root / "build").mkdir(exist_ok=True)
        with (root / "build" / "setup.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another set-up of this clone may be at work, or have just ended
            if read_stamp(root) != [place, whole]:
                make_environment(root, environ, place)
                fetch_browser()
                stamp(root).write_text(f"{place} {whole}\n", encoding="utf-8")
            if not (comfyui or has_host(root)):
                fetch_host(root)
        warn_without_compiler(environ)
    say(summary(root, environ, comfyui))


def stamp(root: Path) -> Path:
    return root / ".venv" / "onegraph-setup.json"  # its name in .venvs of earlier set-ups, which may be replaced, too


def read_stamp(root: Path) -> list[str]:
    """The two digests of a finished set-up; [] when there is none or its Python is gone."""
    try:
        return stamp(root).read_text(encoding="utf-8").split() if (root / ".venv/bin/python").exists() else []
    except OSError:
        return []


def wanted(root: Path, environ: Mapping[str, str]) -> tuple[str, str]:
    """Digests of what asks for a new .venv when it changes, and of all that a .venv is made from."""
    place = digest(root, environ.get("UV_PYTHON", ""))
    locks = [root / "requirements" / f"{name}.lock" for name in (*LOCKS, *ONEFLOW_LOCKS)]
    sources = sorted(Path(__file__).parent.glob("setup_*.py"))
    contents = [path.read_bytes() for path in (*locks, root / "pyproject.toml", *sources)]
    return place, digest(place, *contents, without_oneflow(environ))


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def make_environment(root: Path, environ: Mapping[str, str], place: str) -> None:
    """Bring .venv to what the lock files name, in a new one unless a finished one of this place is there."""
    began, venv, python = time.monotonic(), root / ".venv", root / ".venv" / "bin" / "python"
    tool = find_uv(root, environ)
    if read_stamp(root)[:1] != [place]:
        if venv.is_symlink() or (venv.exists() and not stamp(root).exists()):
            kept = venv.rename(venv.with_name(f".venv.before-setup-{int(time.time())}"))
            say(f".venv · it was not made by this set-up, so it is kept as {kept.name}")
        make_venv(root, tool, environ)
        free = shutil.disk_usage(str(root)).free / 1e9
        if free < NEEDED_GB:
            say(f"warning: {free:.1f} GB free on this disk; with an empty cache the environment takes {NEEDED_GB} GB")
    stamp(root).write_text("", encoding="utf-8")  # ours, and not finished
    oneflow = () if why_without_oneflow(root, environ) else ONEFLOW_LOCKS
    locks = [str(root / "requirements" / f"{name}.lock") for name in (*LOCKS, *oneflow)]
    say("packages · minutes and gigabytes the first time, seconds from uv's cache …")
    pip = (tool, "pip")
    run("Installing the packages", [*pip, "sync", "--python", python, "--require-hashes", "--no-build", *locks])
    editable = ("--no-deps", "--no-build-isolation", "--offline", "--editable", root)
    run("Installing the repository into .venv", [*pip, "install", "--python", python, *editable])
    say(f"packages · {time.monotonic() - began:.0f} s")


def find_uv(root: Path, environ: Mapping[str, str]) -> str:
    """The uv on PATH if it runs (a pyenv shim may exist and yet refuse), else a pinned one in build/uv.

    The one of an activated .venv is none to make that .venv anew with.
    """
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    path = os.pathsep.join(folder for folder in folders if folder != str(root / ".venv" / "bin"))
    for tool in (shutil.which("uv", path=path), str(root / "build" / "uv" / "bin" / "uv")):
        if tool and os.access(tool, os.X_OK) and run("", [tool, "--version"], quiet=True):
            return tool
    folder = root / "build" / "uv"
    venv = [sys.executable, "-Im", "venv", "--clear", folder]
    run("Making an environment for uv (on Debian it needs python3-venv)", venv)
    options = ("--quiet", "--only-binary", ":all:", "--require-hashes", "-r", root / "requirements" / "bootstrap.lock")
    run("Installing uv", [folder / "bin" / "python", "-Im", "pip", "install", *options])
    return str(folder / "bin" / "uv")


def make_venv(root: Path, tool: str, environ: Mapping[str, str]) -> None:
    """An empty .venv of the Python that UV_PYTHON names, else of a 3.10 or another one here, else of one uv fetches."""
    venv = [tool, "venv", "--clear", root / ".venv"]
    # Versions of pyenv that are not selected have nothing on PATH but shims, which refuse to run.
    home = environ.get("PYENV_ROOT") or Path(environ.get("HOME", "~")).expanduser() / ".pyenv"
    unselected = sorted(map(str, Path(home).glob("versions/3.1[0-3].*/bin")), reverse=True)
    path = os.pathsep.join([*unselected, environ.get("PATH", os.defpath)])
    if environ.get("UV_PYTHON"):
        run("Making .venv", venv, path=path)
    elif not any(
        run("", [*venv, "--no-python-downloads", "--python", version], quiet=True, path=path)
        for version in (PREFERRED, SUPPORTED)
    ):
        run(f"Making .venv (it needs Python {SUPPORTED})", [*venv, "--python", PREFERRED], path=path)


def python_version(root: Path) -> str:
    config = (root / ".venv" / "pyvenv.cfg").read_text(encoding="utf-8")
    found = re.search(r"^version(?:_info)? *= *(\S+)", config, re.MULTILINE)
    return found.group(1) if found else ""


def without_oneflow(environ: Mapping[str, str]) -> bool:
    return environ.get("ONEGRAPH_WITHOUT_ONEFLOW", "").strip().lower() not in ("", "0", "false", "no")


def why_without_oneflow(root: Path, environ: Mapping[str, str]) -> str:
    """Why OneFlow is left out here, or nothing: its wheels are for one Python on one kind of machine."""
    if without_oneflow(environ):
        return "ONEGRAPH_WITHOUT_ONEFLOW is set"
    if python_version(root).startswith(PREFERRED + ".") and platform.machine() == "x86_64":
        return ""
    return "it needs Python 3.10 on x86-64"


def fetch_browser() -> None:
    """Debian's Chromium for the tests of the page: installed where nobody need be asked, else named.

    Everything else works without it, so nothing here fails the set-up.
    """
    if CHROMIUM.exists():
        return
    install = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends", "chromium"]
    if os.geteuid() == 0 and shutil.which("apt-get") is not None:
        say("Chromium · by apt-get …")
        if run("", ["apt-get", "update"], quiet=True) and run("", install, quiet=True):
            return
    say(f"Chromium left out · install Debian's package chromium ({CHROMIUM}); tests of the page are skipped")


def warn_without_compiler(environ: Mapping[str, str]) -> None:
    names: Iterable[str] = (environ.get("CXX", ""), "g++", "clang++")
    if not any(name and shutil.which(name.split()[0], path=environ.get("PATH")) for name in names):
        say(
            "warning: no C++ compiler (g++ or clang++) was found, so the inductor backend cannot compile here and its "
            "tests are skipped; install one, or set CXX."
        )


def summary(root: Path, environ: Mapping[str, str], comfyui: Path | None) -> str:
    host = comfyui or Path("build", "host", "ComfyUI")
    reason = why_without_oneflow(root, environ)
    oneflow = f"without OneFlow ({reason})" if reason else "with OneFlow"
    return f"ready · .venv, Python {python_version(root)} · ComfyUI {host_version(root / host)} in {host} · {oneflow}"


def main(root: Path | None = None) -> None:
    try:
        set_up(root or Path(__file__).resolve().parent.parent, os.environ)
    except (SetupError, OSError) as error:
        sys.exit(f"set-up: {error}")
    except KeyboardInterrupt:
        sys.exit("set-up: Interrupted. Run it again: what was fetched is kept, the rest is done anew.")


if __name__ == "__main__":
    main()
