"""Which Python the environment is made of: the newest 3.10 that runs, else another supported one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping

from setup_common import SetupError

PREFERRED = (3, 10)  # the only version that both OneFlow 0.9.0 and ComfyUI 0.30.0 run on
SUPPORTED = ((3, 10), (3, 11), (3, 12), (3, 13))

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


@dataclass(frozen=True)
class Interpreter:
    """A Python that was started once and answered."""

    executable: str
    version: tuple[int, int, int]
    machine: str

    @property
    def release(self) -> str:
        return ".".join(map(str, self.version))


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
