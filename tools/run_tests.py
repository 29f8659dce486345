"""Run the checks and all test layers, and print the totals in the last line: `.venv/bin/python tools/run_tests.py`.

Each layer is a process of its own, because a process that has imported ComfyUI or OneFlow keeps them, and because a
layer that crashes must not hide the results of the others. Seven layers run at a time, each on its share of the cores:
most of the time goes into compilers that use one core, and into waiting for servers. A layer's output is then printed
when the layer has ended. Layers share graphs of small models, in a folder that goes when all have ended, and a process
of which servers and compiles are copies.

`run_tests.py unit host` runs only these; what follows `--` goes to pytest, as in `run_tests.py unit -- -k store -x`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

ROOT = Path(__file__).resolve().parent.parent
LAYERS = (
    "unit", "attacks", "integration", "faults", "kills", "pipelines", "host", "vae", "edits", "blocks", "server",
    "web", "workflows", "fuzz", "gpu", "windows",
)  # fmt: skip
# Side by side; each runs its layers in turn.
LANES = (
    ("host",),
    ("blocks", "vae", "attacks", "gpu", "windows"),
    ("edits", "faults"),
    ("server", "fuzz"),
    ("integration", "web"),
    ("pipelines",),
    ("kills", "workflows", "unit"),
)
# Where the tests of a layer are, if not in the folder of its name.
PLACES = {
    "host": ("tests/host", *(f"--ignore=tests/host/{layer}" for layer in ("edits", "blocks", "vae"))),
    "faults": ("tests/faults", "--ignore=tests/faults/test_kills.py"),
    "kills": ("tests/faults/test_kills.py",),
    "vae": ("tests/host/vae",),
    "edits": ("tests/host/edits",),
    "blocks": ("tests/host/blocks",),
}
WARM = "ONEGRAPH_TESTING_WARM"
MAY_SKIP_ALL = frozenset({"gpu", "web", "windows"})  # a machine without a GPU, a browser or wine is a normal machine
FULL_ONLY = frozenset({"windows"})  # layers that run when all is to run, or when they are named
PACKAGES = tuple(sorted(path.parent.name for path in ROOT.glob("*/__init__.py")))
FULL = {"fuzz": ("--fuzz-cases", "60")}  # what pytest is given before other arguments when everything is to run
NO_TEST_COLLECTED = 5  # pytest's exit status
# Seconds in which a layer beside others prints nothing: one that hangs would hide the results of all. A test that shows
# no sign ends earlier (pyproject.toml); this is for what its alarm cannot end.
QUIET = 3600.0


@dataclass(frozen=True)
class Outcome:
    """The result of one layer, or of the checks.

    Attributes:
        cpu_seconds: of its processes, compilers and servers too.
        unpassed: a line for each test that did not pass.
    """

    name: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    cpu_seconds: float = 0.0
    trouble: str = ""
    unpassed: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        return self.failed == 0 and not self.trouble


def counts(report: Path) -> tuple[int, int, int]:
    """Read (passed, failed, skipped) from a junit file; all 0 when pytest died before it wrote one."""
    try:
        suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    except (OSError, ElementTree.ParseError):
        return 0, 0, 0

    def total(name: str) -> int:
        return sum(int(suite.get(name, 0)) for suite in suites)

    failed, skipped = total("failures") + total("errors"), total("skipped")
    return max(total("tests") - failed - skipped, 0), failed, skipped


def unpassed(report: Path) -> list[str]:
    """Return a line for each test of a junit file that did not pass: its name, and the first line of why."""
    try:
        cases = [*ElementTree.parse(report).getroot().iter("testcase")]
    except (OSError, ElementTree.ParseError):
        return []
    ends = [(case, end) for case in cases for end in (*case.findall("failure"), *case.findall("error"))]
    return [
        f"{case.get('classname')}::{case.get('name')}: {(end.get('message') or '').partition(chr(10))[0][:300]}"
        for case, end in ends
    ]


def judge(layer: str, code: int, passed: int, failed: int, skipped: int, shared: bool = False) -> str:
    """Describe what is wrong with a layer beyond its failed tests; empty when nothing is.

    Args:
        shared: whether a share of its tests was asked for, which may have none of them.
    """
    if code == NO_TEST_COLLECTED or (code == 0 and passed == 0):
        return "" if shared or (layer in MAY_SKIP_ALL and skipped) else "ran no test"
    if code == 0 or (code == 1 and failed):
        return ""
    return f"killed by signal {-code}" if code < 0 else f"pytest ended with status {code}"


def layer_arguments(layer: str, full: bool, given: list[str]) -> list[str]:
    """Return pytest's arguments for a layer: those given, after what leaves the long tests out or asks for more."""
    if full:
        return [*FULL.get(layer, ()), *given]
    return given if "-m" in given else ["-m", "not full", *given]


def run_process(
    command: list[str], environ: dict[str, str], out: BinaryIO | None, quiet: float = QUIET
) -> tuple[int, float]:
    """Run a command at the repository's root; its exit status, and the CPU seconds of it and all its children.

    Args:
        quiet: seconds without any output after which it gets SIGABRT, where its output goes to a file: pytest's
            faulthandler then prints where each thread was. However long it takes, it runs on while it prints.
    """
    process = subprocess.Popen(command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    if sys.platform == "win32":
        return process.wait(), 0.0
    ended = threading.Event()
    if out is not None:
        threading.Thread(target=_abort_when_quiet, args=(process.pid, out, quiet, ended), daemon=True).start()
    _, status, used = os.wait4(process.pid, 0)
    ended.set()
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


def _abort_when_quiet(process: int, out: BinaryIO, quiet: float, ended: threading.Event) -> None:
    size, since = -1, time.monotonic()
    while not ended.wait(min(quiet / 10, 10.0)):
        now = os.fstat(out.fileno()).st_size
        if now != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > quiet:
            os.kill(process, signal.SIGABRT)
            return


def run_layer(layer: str, extra: list[str], graphs: Path, threads: int | None = None) -> Outcome:
    """Run a layer's tests. With a number of threads its output is printed at its end, else as it comes.

    Args:
        graphs: folder of the graphs that layers share.
    """
    report = ROOT / "build" / "test" / f"{layer}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    environ = layer_environment(graphs, threads)
    title = f"\n=== {layer} ==="
    print(f"{title} started" if threads is not None else title, flush=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", *PLACES.get(layer, (f"tests/{layer}",)), f"--junitxml={report}", *extra]
    log = report.with_suffix(".log")
    with log.open("wb") if threads is not None else contextlib.nullcontext() as out:
        code, cpu_seconds = run_process(command, environ, out)
    if threads is not None:
        print(f"{title}\n{log.read_text(errors='replace')}", flush=True)
    passed, failed, skipped = counts(report)
    shared = any(word.startswith("--share") for word in extra)
    trouble = judge(layer, code, passed, failed, skipped, shared)
    if trouble:
        failed = max(failed, 1)  # the test that it died in, or that it should have had, counts in the totals
    seconds = time.monotonic() - began
    return Outcome(layer, passed, failed, skipped, seconds, cpu_seconds, trouble, tuple(unpassed(report)))


def layer_environment(graphs: Path, threads: int | None) -> dict[str, str]:
    """Return the environment of a layer's processes; see `run_layer`."""
    host = ROOT / "build" / "host" / "ComfyUI"
    environ = dict(os.environ)
    if not environ.get("COMFYUI_PATH") and (host / "main.py").is_file():
        environ["COMFYUI_PATH"] = str(host)
    # Hundreds of processes import torch and ComfyUI, which takes twice as long without bytecode. Installers do not
    # always write it, and containers often tell Python not to.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    environ.setdefault("PYTHONPYCACHEPREFIX", str(ROOT / "build" / "pycache"))
    environ["ONEGRAPH_TESTING_GRAPHS"] = str(graphs)
    # Threads that spin while they wait take the cores from the processes beside: three runs of one file at once on two
    # cores took four times as long.
    environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if threads is not None:
        environ.setdefault("OMP_NUM_THREADS", str(threads))
    return environ


@contextlib.contextmanager
def warm_process(graphs: Path, threads: int | None) -> Iterator[list[Outcome]]:
    """Have a process of which servers and compiles are copies, while this lasts (Linux); see `tools/headless/warm.py`.

    Yields:
        A list that has its outcome afterwards, for the CPU time of all copies.
    """
    outcomes: list[Outcome] = []
    if sys.platform != "linux":
        yield outcomes
        return
    began = time.monotonic()
    environ = {name: value for name, value in layer_environment(graphs, threads).items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory(prefix="og-") as folder:  # a socket's path must be short
        socket = Path(folder) / "warm"
        command = [sys.executable, str(ROOT / "tools" / "headless" / "warm.py"), str(socket)]
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stdin=subprocess.PIPE)
        assert process.stdin is not None
        try:
            while process.poll() is None and not socket.exists():
                time.sleep(0.1)
            os.environ[WARM] = str(socket)
            yield outcomes
        finally:
            os.environ.pop(WARM, None)
            process.stdin.close()
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
    outcomes.append(Outcome("copies", 0, 0, 0, time.monotonic() - began, used.ru_utime + used.ru_stime))


def run_layers(layers: list[str], full: bool, given: list[str]) -> list[Outcome]:
    """Run the layers, a lane beside the other where there is more than one core, and return them in their order."""
    lanes = [lane for lane in ([layer for layer in lane if layer in layers] for lane in LANES) if lane]
    cores = os.cpu_count() or 1
    side_by_side = len(lanes) > 1 and cores > 1
    threads = max(cores // len(lanes), 1) if side_by_side else None
    parent = ROOT / "build" / "test"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="graphs-", dir=parent, ignore_cleanup_errors=True) as graphs:

        def run(lane: list[str]) -> list[Outcome]:
            return [run_layer(layer, layer_arguments(layer, full, given), Path(graphs), threads) for layer in lane]

        if not side_by_side:
            return [run_layer(layer, layer_arguments(layer, full, given), Path(graphs)) for layer in layers]
        with warm_process(Path(graphs), threads) as copies, ThreadPoolExecutor(len(lanes)) as pool:
            outcomes = {one.name: one for lane in pool.map(run, lanes) for one in lane}
        return [*(outcomes[layer] for layer in layers), *copies]


def link_package() -> None:
    """Give mypy the repository under the package's name, whatever the folder is called."""
    link = ROOT / "build" / "mypy" / "onegraph"
    if not (link.is_symlink() and link.resolve() == ROOT):
        if link.is_symlink():
            link.unlink()
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(ROOT, target_is_directory=True)


def checks() -> list[tuple[str, list[str]]]:
    """List the name and command of each check of the sources."""
    python = [sys.executable, "-m"]
    modules = [f"onegraph.{path.stem}" for path in sorted(ROOT.glob("*.py")) if path.stem != "__init__"]
    wanted = [word for name in ("onegraph", *modules) for word in ("-m", name)]
    wanted += [word for name in PACKAGES for word in ("-p", f"onegraph.{name}")]
    return [
        ("ruff check", [*python, "ruff", "check", "."]),
        ("ruff format --check", [*python, "ruff", "format", "--check", "."]),
        ("mypy", [*python, "mypy", *wanted]),
        ("mypy tools", [*python, "mypy"]),
    ]


def run_checks() -> Outcome:
    """Run ruff and mypy; the outcome names each check that found something.

    What they print comes in one piece, so that they can run beside layers.
    """
    began = time.monotonic()
    link_package()
    unclean = []
    for name, command in checks():
        ended = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        print(f"\n=== {name} ===\n{ended.stdout.decode(errors='replace')}", end="", flush=True)
        if ended.returncode != 0:
            unclean.append(name)
    trouble = f"not clean: {', '.join(unclean)}" if unclean else ""
    return Outcome("lint", 0, 0, 0, time.monotonic() - began, trouble=trouble)


def table(outcomes: list[Outcome]) -> str:
    """Format the outcomes as aligned text, with the totals in the last line."""
    lines = [f"{'layer':<12}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>10}{'of CPU':>10}"]
    for one in outcomes:
        numbers = f"{one.passed:>8}{one.failed:>8}{one.skipped:>9}" if one.name not in ("lint", "copies") else " " * 25
        cpu = f"{one.cpu_seconds:>10.1f}" if one.cpu_seconds else " " * 10
        lines.append(f"{one.name:<12}{numbers}{one.seconds:>10.1f}{cpu}  {one.trouble}".rstrip())
    passed, failed, skipped = (sum(getattr(one, name) for one in outcomes) for name in ("passed", "failed", "skipped"))
    return "\n".join([*lines, f"{passed} passed, {failed} failed, {skipped} skipped"])


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description="Run the checks and the test layers.")
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=f"any of {', '.join(LAYERS)}; all when left out")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--no-lint", action="store_true", help="leave ruff and mypy out")
    choice.add_argument("--lint-only", action="store_true", help="run ruff and mypy, and no test")
    parser.add_argument("--full", action="store_true", help="with the tests marked full, which take long")
    options = parser.parse_args(words[:split])
    for layer in options.layers:
        if layer not in LAYERS:
            parser.error(f"there is no layer {layer}; there are {', '.join(LAYERS)}")
    if options.lint_only:
        lint = run_checks()
        print(f"lint: {lint.trouble or 'clean'}")
        return 0 if lint.good else 1
    usual = [layer for layer in LAYERS if options.full or layer not in FULL_ONLY]
    chosen = [layer for layer in LAYERS if layer in (options.layers or usual)]
    with ThreadPoolExecutor(1) as beside:  # the checks use one core, and layers wait for each other at the start
        checked = [] if options.no_lint else [beside.submit(run_checks)]
        outcomes = run_layers(chosen, options.full, words[split + 1 :])
    outcomes = [*(one.result() for one in checked), *outcomes]
    width = min(shutil.get_terminal_size().columns, 80)
    lines = [line for one in outcomes for line in one.unpassed]
    print("\n".join(["", "=" * width, *lines, table(outcomes)]), flush=True)
    return 0 if chosen and all(one.good for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
