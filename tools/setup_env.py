"""Make the whole development environment with one command: `python3 tools/setup_env.py`, or `make setup`.

It makes `.venv` in the repository root, installs exactly what the lock files under `requirements/` name, the
repository itself (editable) and OneFlow where it exists, and unpacks a ComfyUI to test against. Three wishes shaped it:

* Nothing unpinned: every download is checked against a hash that stands in the repository.
* Nothing half done: each finished step is noted in a stamp; a step without its note is done again, from its start.
  A set-up that is in place is recognised in a fraction of a second, so `make test` can always begin with it.
* No riddles: a failure is one line that says what happened, why and what to do; the rest is in build/setup.log.

Variables: COMFYUI_PATH (your own ComfyUI, nothing is fetched), ONEGRAPH_WITHOUT_ONEFLOW=1 (leave OneFlow out).
It runs before anything is installed, by any Python from 3.8, so it and its modules (setup_common, setup_python,
setup_host and setup_browser) use the standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, NoReturn

from setup_browser import fetch_browser, has_browser
from setup_common import (
    NEEDED_GB,
    Layout,
    SetupError,
    Stamp,
    clear_away,
    digest,
    run,
    say,
    seconds_since,
    uv,
    write_log,
)
from setup_host import fetch_host, host_version, user_comfyui
from setup_python import PREFERRED, candidates, choose_python, probe

NEEDED_WARM_GB = 2  # the same, when the installer's cache already holds it and links to it
STEPS = ("environment", "project", "host", "oneflow", "browser")
_SOURCES = sorted(Path(__file__).parent.glob("setup_*.py"))


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
                elif step == "browser":
                    fetch_browser(layout)
                    wanted = {**wanted, "browser": digest(has_browser())}
                elif comfyui is None:
                    fetch_host(layout)
                stamp.steps[step] = wanted[step]
                stamp.write(layout.stamp)
        warn_without_compiler(environ)
    say(summary(layout, stamp, comfyui))


def wanted_steps(layout: Layout, environ: Mapping[str, str], comfyui: Path | None) -> dict[str, str]:
    """For each step the digest of everything that its result depends on."""
    return {
        "environment": digest(str(layout.root), *_SOURCES, layout.lock("bootstrap"), layout.lock("host")),
        "project": digest(layout.root / "pyproject.toml"),
        "host": digest(str(comfyui or ""), layout.lock("comfyui")),
        "oneflow": digest(without_oneflow(environ), layout.lock("oneflow"), layout.lock("oneflow-cuda")),
        "browser": digest(has_browser()),
    }


def without_oneflow(environ: Mapping[str, str]) -> bool:
    return environ.get("ONEGRAPH_WITHOUT_ONEFLOW", "").strip().lower() not in ("", "0", "false", "no")


def open_steps(layout: Layout, stamp: Stamp, wanted: Mapping[str, str], comfyui: Path | None) -> list[str]:
    """The steps that are still to do, in order."""
    if not layout.python.exists() or stamp.steps.get("environment") != wanted["environment"]:
        return list(STEPS)
    todo = [step for step in STEPS if stamp.steps.get(step) != wanted[step]]
    if "host" not in todo and comfyui is None and not (layout.host / "main.py").is_file():
        todo.insert(0, "host")
    return todo


def wished(stamp: Stamp, wish: str | None) -> Stamp:
    """The stamp, or an empty one when it belongs to another Python than `--python` asks for."""
    if wish is None:
        return stamp
    answer = probe(wish)
    return stamp if answer is not None and answer["executable"] == stamp.executable else Stamp()


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
    install = ("install", "--no-deps", "--no-build-isolation", "--offline", "--reinstall-package", "onegraph")
    uv(layout, "Installing the repository into .venv", *install, "--editable", layout.root)
    say(f"onegraph · editable · {seconds_since(began)}")


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
