"""Starts of a server as deployments make them: in a mount namespace, as another user, with folders that come and go.

A compile is a copy of a few bytes here, and a graph computes with the module itself: what counts is how often a start
compiles, what it leaves, and what the node shows.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from onegraph.backends.inductor import InductorBackend
from onegraph.compiler.process.job import Compiled
from onegraph.graph_cache.key import GraphKey
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.runtime.calls.dispatch import Call, Dispatcher
from onegraph.runtime.calls.run import Run
from onegraph.runtime.obtain import compiles
from onegraph.runtime.obtain.registry import registry
from support.models import toy

SETTINGS = ("HOME", "ONEGRAPH_HOME", "ONEGRAPH_SIGNING_KEY", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "TMPDIR")
_NEW_MOUNTS, _PRIVATE, _RECURSIVE = 0x20000, 1 << 18, 1 << 14


@dataclass(frozen=True)
class Start:
    """What one start showed."""

    compiles: int
    compiled_calls: int
    text: str


@dataclass(frozen=True)
class Series:
    """Starts of one deployment.

    Attributes:
        entries: how many graphs are left at the end below each folder of the root that has any.
    """

    starts: tuple[Start, ...]
    entries: dict[str, int]

    @property
    def compiles(self) -> int:
        return sum(start.compiles for start in self.starts)

    @property
    def texts(self) -> list[str]:
        return [start.text for start in self.starts]


@dataclass(frozen=True)
class Deployment:
    """A machine on which starts happen.

    Attributes:
        root: a folder that any user may enter: `models`, `home`, `user`, `tmp` and what a test adds lie in it.
        before: what happens before each start, by its number, with root's rights.
        beside: whether the model's checkpoint is known, so that graphs may lie beside it.
        uid: as whom the starts run; None: as this user.
        settings: environment variables; others of `SETTINGS` are not set.
    """

    root: Path
    settings: dict[str, str] = field(default_factory=dict)
    before: Callable[[int], object] = lambda number: None
    beside: bool = True
    uid: int | None = None

    def series(self, starts: int) -> Series:
        """Start so many times, in a mount namespace of their own."""
        context = multiprocessing.get_context("fork")
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=self._series, args=(starts, sending))
        process.start()
        sending.close()
        try:
            found: Series = receiving.recv()
        finally:
            process.join()
        return found

    def _series(self, starts: int, sending: Any) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(_NEW_MOUNTS) == 0, os.strerror(ctypes.get_errno())
        libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
        done = []
        for number in range(starts):
            self.before(number)
            done.append(self.start())
        sending.send(Series(tuple(done), count_entries(self.root)))

    def start(self) -> Start:
        """Start once, in the mount namespace at hand."""
        context = multiprocessing.get_context("fork")
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=self._serve, args=(sending,))
        process.start()
        sending.close()
        try:
            found: Start = receiving.recv()
        finally:
            process.join()
        return found

    def _serve(self, sending: Any) -> None:
        for name in SETTINGS:
            os.environ.pop(name, None)
        os.environ.update({"TMPDIR": str(self.root / "tmp")} | self.settings)
        tempfile.tempdir = None
        os.chdir("/")
        if self.uid is not None:
            os.setgroups([])
            os.setgid(self.uid)
            os.setuid(self.uid)
        sending.send(serve(self.root / "models" / "photo.safetensors" if self.beside else None))


def count_entries(root: Path) -> dict[str, int]:
    """Count the graphs below each folder in a folder that look-ups would read."""
    found = [path.relative_to(root).parts for path in root.rglob("manifest.json")]
    return dict(Counter(parts[0] for parts in found if not any(part.startswith(".") for part in parts)))


class _Runner:
    reads_in_place, cuda_graphs, held_bytes = True, None, 0

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def bind(self, tensors: object) -> None: ...

    def close(self) -> None: ...

    def __call__(self, *inputs: torch.Tensor) -> Any:
        return self._module(*inputs)


class _Host(Dispatcher):
    def follow(self, label: str) -> Callable[[object], None]:
        return lambda progress: None


def _compile(job: object, staging: Path, *args: object) -> Compiled:
    (staging / "graph.aoti").write_bytes(b"code")
    return Compiled(("graph.aoti",), (), 1.0)


def serve(checkpoint: Path | None) -> Start:
    """Run one call of the toy in this process, which is a server from now on."""
    torch.set_grad_enabled(False)
    os.environ["ONEGRAPH_TESTING_TRUST_SLOW_GRAPHS"] = "1"  # it computes as eager does
    module = toy.Toy()
    setattr(compiles, "compile_in_child", _compile)  # noqa: B010
    setattr(InductorBackend, "load", lambda backend, folder, device: _Runner(module))  # noqa: B010
    request = toy.request(module, ModelSource(checkpoint, "0123456789ab"))
    inputs = toy.inputs()
    run = Run()
    call = Call(request, inputs, module, "wait")
    _Host().dispatch(run, module, lambda: call, lambda: module(*inputs))
    return Start(registry().counters.compiles, run.report.compiled_calls, run.report.text())


def wanted() -> GraphKey:
    """The key of the graph that all starts want."""
    return toy.request(toy.Toy(), ModelSource(None, "0123456789ab")).key


def without_modes(folder: Path, build: Path) -> dict[str, str]:
    """Settings of processes for which all below a folder may be written by everybody, as on a Windows drive."""
    (build / "modes.c").write_text(_MODES)
    library = build / "modes.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, build / "modes.c", "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "WITHOUT_MODES": str(folder.resolve())}


def series_elsewhere(root: Path, starts: int, settings: dict[str, str]) -> list[Start]:
    """Start so many times below a new program, whose settings hold from its beginning; no checkpoint is known."""
    paths = [str(Path(__file__).parents[2]), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(root), str(starts), json.dumps(settings)],
        env={**os.environ, **settings, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [Start(**start) for start in json.loads(done.stdout.splitlines()[-1])]


_PROGRAM = """
import dataclasses, json, sys
from pathlib import Path
from support.processes.deployments import Deployment
deployment = Deployment(Path(sys.argv[1]), json.loads(sys.argv[3]), beside=False)
print(json.dumps([dataclasses.asdict(deployment.start()) for _ in range(int(sys.argv[2]))]))
"""


def mount(kind: str, place: Path, options: str) -> None:
    """Mount a file system in the namespace at hand."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", kind, "-o", options, "none", str(place)], check=True)


def read_only(*folders: Path) -> None:
    """Have folders be read-only from now on in the namespace at hand."""
    for folder in folders:
        subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)


def give_to_group(gid: int, *folders: Path) -> None:
    """Open all files below folders to a group, as `fsGroup` of a pod does at each of its starts."""
    for path in [path for folder in folders for path in (folder, *folder.rglob("*"))]:
        with contextlib.suppress(FileNotFoundError):
            os.chown(path, -1, gid, follow_symlinks=False)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o2070 if path.is_dir() else 0o060))


def work(folders: Sequence[Path]) -> None:
    """Make folders that this user alone may write and all may enter."""
    for folder in folders:
        folder.mkdir()
        folder.chmod(0o755)


_MODES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int below(const char *path) {
    const char *drive = getenv("WITHOUT_MODES");
    size_t length = drive ? strlen(drive) : 0;
    return length && !strncmp(path, drive, length) && (path[length] == '/' || !path[length]);
}

static int opened(int at, const char *path, char *full) {
    char link[64];
    if (path && path[0] == '/') { snprintf(full, PATH_MAX, "%s", path); return 1; }
    snprintf(link, sizeof link, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
    ssize_t length = readlink(link, full, PATH_MAX - 1);
    if (length < 0) return 0;
    full[length] = 0;
    if (path && path[0]) snprintf(full + length, PATH_MAX - length, "/%s", path);
    return 1;
}

static void open_up(int at, const char *path, struct stat *found) {
    char full[PATH_MAX];
    if (opened(at, path, full) && below(full) && !S_ISLNK(found->st_mode)) found->st_mode |= 0777;
}

#define REAL(name, ...) ((int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))
int stat(const char *p, struct stat *s) {
    int r = REAL("stat", const char *, struct stat *)(p, s);
    if (!r) open_up(AT_FDCWD, p, s);
    return r;
}
int lstat(const char *p, struct stat *s) {
    int r = REAL("lstat", const char *, struct stat *)(p, s);
    if (!r) open_up(AT_FDCWD, p, s);
    return r;
}
int fstat(int f, struct stat *s) {
    int r = REAL("fstat", int, struct stat *)(f, s);
    if (!r) open_up(f, "", s);
    return r;
}
int fstatat(int d, const char *p, struct stat *s, int g) {
    int r = REAL("fstatat", int, const char *, struct stat *, int)(d, p, s, g);
    if (!r) open_up(d, p, s);
    return r;
}
int stat64(const char *p, struct stat64 *s) { return stat(p, (struct stat *)s); }
int lstat64(const char *p, struct stat64 *s) { return lstat(p, (struct stat *)s); }
int fstat64(int f, struct stat64 *s) { return fstat(f, (struct stat *)s); }
int fstatat64(int d, const char *p, struct stat64 *s, int g) { return fstatat(d, p, (struct stat *)s, g); }
"""
