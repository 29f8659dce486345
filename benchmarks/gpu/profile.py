"""Where the time of a compile goes: a sampling profiler inside the compiling process, and its compilers from outside.

`python -m benchmarks.gpu --profile` puts a sitecustomize on the path of the processes it starts, which calls
`start_in_worker`. The worker ends without Python's shutdown, so the samples are written every few seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

FOLDER = "ONEGRAPH_GPU_PROFILE"
_EVERY = 0.025
_COMPILERS = ("cc1plus", "g++", "clang++", "ptxas", "nvcc", "ld", "collect2", "as", "gcc")


def install(folder: Path) -> None:
    """From now on every Python process started from here looks whether it is a compiling process."""
    folder.mkdir(parents=True, exist_ok=True)
    site = folder / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"if os.environ.get({FOLDER!r}) and any(a.endswith('worker.py') for a in sys.orig_argv):\n"
        "    import importlib.util\n"
        f"    spec = importlib.util.spec_from_file_location('onegraph_gpu_profile', {__file__!r})\n"
        "    profile = importlib.util.module_from_spec(spec)\n"
        "    spec.loader.exec_module(profile)\n"
        "    profile.start_in_worker()\n"
    )
    os.environ[FOLDER] = str(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))


def start_in_worker() -> None:
    main = threading.main_thread().ident
    assert main is not None
    out = Path(os.environ[FOLDER]) / f"worker-{os.getpid()}.json"
    inclusive: Counter[str] = Counter()
    own: Counter[str] = Counter()
    begun = time.perf_counter()

    def write(samples: int) -> None:
        seconds = time.perf_counter() - begun
        share = seconds / max(samples, 1)
        phases = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", {})
        report = {
            "argv": sys.orig_argv,
            "seconds": round(seconds, 1),
            "samples": samples,
            "torch_phases_s": {name: round(sum(spent), 2) for name, spent in dict(phases).items() if sum(spent) > 0.3},
            "inclusive_s": {name: round(n * share, 1) for name, n in inclusive.most_common(160)},
            "own_s": {name: round(n * share, 1) for name, n in own.most_common(60)},
        }
        out.write_text(json.dumps(report, indent=1))

    def sample() -> None:
        samples, written = 0, time.perf_counter()
        while True:
            time.sleep(_EVERY)
            frame: Any = sys._current_frames().get(main)
            seen: set[str] = set()
            leaf = True
            while frame is not None:
                code = frame.f_code
                origin = "/".join(code.co_filename.rsplit("/", 3)[-3:])
                name = f"{code.co_qualname if sys.version_info >= (3, 11) else code.co_name} ({origin})"
                if leaf:
                    own[name] += 1
                    leaf = False
                if name not in seen:
                    seen.add(name)
                    inclusive[name] += 1
                frame = frame.f_back
            samples += 1
            if time.perf_counter() - written > 4:
                written = time.perf_counter()
                write(samples)

    threading.Thread(target=sample, daemon=True).start()


def _kernel(line: list[str]) -> str | None:
    """The kernel that ptxas is at work on."""
    for argument in line:
        if argument.endswith(".ptx"):
            with contextlib.suppress(OSError):
                found = re.search(r"\.entry\s+(\w+)", Path(argument).read_text())
                return found.group(1) if found else None
    return None


class GpuMemory:
    """The most that each process kept of the GPU's memory, as the driver sees it (MiB by process id)."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        while not self._stopped.wait(2):
            with contextlib.suppress(OSError, ValueError):
                for line in subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines():
                    pid, used = line.split(",")
                    self.most[pid.strip()] = max(self.most.get(pid.strip(), 0), int(used))

    def stop(self) -> dict[str, int]:
        self._stopped.set()
        return self.most


class CompilerWatch:
    """Every C++ compiler, assembler and linker below this process: how long it ran and with which options."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, float], dict[str, Any]] = {}
        self._stopped = threading.Event()
        self._begun = time.time()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        import psutil

        me = psutil.Process()
        while not self._stopped.wait(0.3):
            for process in me.children(recursive=True):
                try:
                    name = process.name()
                    if name not in _COMPILERS:
                        continue
                    identity = (process.pid, process.create_time())
                    known = self.seen.get(identity)
                    if known is None:
                        line = process.cmdline()
                        options = [a for a in line if a.startswith(("-O", "-march", "-std", "-g"))]
                        files = [Path(a).name for a in line if a.endswith((".cpp", ".cu", ".ptx", ".s"))]
                        if name == "ptxas":
                            files = [_kernel(line) or str(files)]
                        known = {"name": name, "options": options, "files": files[:3], "start": round(identity[1], 1)}
                        self.seen[identity] = known
                    cpu = process.cpu_times()
                    known["seconds"] = round(time.time() - identity[1], 1)
                    known["cpu_s"] = round(cpu.user + cpu.system, 1)
                    known["rss_mb"] = max(known.get("rss_mb", 0), process.memory_info().rss >> 20)
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue

    def stop(self) -> list[dict[str, Any]]:
        self._stopped.set()
        found = [v for v in self.seen.values() if v.get("seconds", 0) >= 0.5]
        for row in found:
            row["start"] = round(row["start"] - self._begun, 1)
        return sorted(found, key=lambda row: -row["seconds"])[:40]
