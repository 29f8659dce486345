"""What every step of the set-up uses: where things are, the stamp, and running other programs.

Like all of the set-up it runs before anything is installed, by any Python from 3.8.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterable

NEEDED_GB = 12  # everything unpacked: 11 GB


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


def digest(*parts: Any) -> str:
    """One digest over texts and the contents of files."""
    total = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else str(part).encode()
        total.update(b"%d:" % len(data) + data)
    return total.hexdigest()


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


def clear_away(path: Path) -> None:
    """Remove a folder such that no other run can take what is left of it for the whole."""
    trash = path.with_name(path.name + ".trash")
    if trash.exists():
        shutil.rmtree(trash)
    if path.exists():
        path.rename(trash)
        shutil.rmtree(trash)


def say(text: str) -> None:
    print(text, flush=True)


def seconds_since(began: float) -> str:
    return f"{time.monotonic() - began:.0f} s"
