"""`onegraph doctor`: what works on this machine, and what to do about the rest."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from .output import Json, counted, print_json, print_line, print_text, size

_VERSION = re.compile(r"""__version__ = ["']([^"']+)""")
_LITTLE = 1 << 30  # bytes free on a disk


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        what: names it for programs.
        state: `problem`: graphs cannot be used or made as they should. `note`: something is worth knowing.
        remedy: what to do; empty where nothing is to be done.
    """

    what: str
    state: Literal["ok", "note", "problem"]
    text: str
    remedy: str = ""


def doctor(as_json: Json = False) -> None:
    """Show what works on this machine, and what to do about the rest.

    The last line tells whether models can be compiled here. Exit code 1 if there is a problem.
    """
    *checks, summary = _backends()
    findings = [*_programs(), *checks, *_store(), *_disk(), *_settings(), summary]
    failed = any(one.state == "problem" for one in findings)
    if as_json:
        print_json({"findings": [asdict(one) for one in findings]})
        raise typer.Exit(1 if failed else 0)
    for one in findings[:-1]:
        print_line(one.text)
        if one.remedy:
            print_line(f"  {one.state}: {one.remedy}")
    print_text(summary.text)
    raise typer.Exit(1 if failed else 0)


def _programs() -> Iterator[Check]:
    """What a bug report begins with."""
    from ..common.version import __version__

    pack = Path(__file__).resolve().parents[1]
    yield Check("onegraph", "ok", f"OneGraph {__version__} in {pack}")
    yield Check("python", "ok", f"Python {platform.python_version()} on {platform.platform()}: {sys.executable}")
    for comfyui in (Path(os.environ.get("COMFYUI_PATH") or os.devnull), pack.parent.parent):
        with contextlib.suppress(OSError, ValueError):
            version = _VERSION.search((comfyui / "comfyui_version.py").read_text(encoding="utf-8"))
            yield Check("comfyui", "ok", f"ComfyUI {version[1] if version else 'of an unknown version'} in {comfyui}")
            break
    else:
        yield Check("comfyui", "note", "ComfyUI is not found; name its folder in COMFYUI_PATH")


def _backends() -> Iterator[Check]:
    """What compiles and runs graphs here, and, at last, a summary."""
    from ..common.errors import in_brief

    try:
        import torch

        version = torch.__version__  # a folder that an uninstall left behind can be imported, too

        from .. import backends
        from ..backends.inductor.toolchain import cpp_compiler
        from ..common.torch_private import driver_version
    except Exception as error:
        remedy = "run the `onegraph` of the Python that ComfyUI runs in, or install torch"
        yield Check("torch", "problem", f"torch cannot be imported by {sys.executable} ({in_brief(error)})", remedy)
        yield Check("summary", "ok", f"Models can be neither compiled nor loaded here: {remedy}.")
        return
    yield Check("torch", "ok", f"torch {version}")
    yield Check("compiler", "ok", f"C++ compiler: {cpp_compiler() or 'none'}")
    if not torch.cuda.device_count():
        yield Check("gpu", "ok", "GPU: none that torch can use")
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        text = f"{gpu.name}, sm_{gpu.major}{gpu.minor}, {size(gpu.total_memory)}, driver {driver_version()}"
        yield Check(f"gpu cuda:{index}", "ok", f"cuda:{index}: {text}")
    devices = [torch.device("cpu"), *(torch.device("cuda", i) for i in range(torch.cuda.device_count()))]
    served, loads = set[torch.device](), set[torch.device]()
    for name in backends.known():
        backend = backends.get(name)
        for device in devices:
            runs, compiles = backend.can_run(device), backend.can_compile(device)
            text = (
                f"{name} on {device}: runs graphs: {'yes' if runs.ok else runs.text}; "
                f"compiles: {'yes' if compiles.ok else compiles.text}"
            )
            if runs.ok:
                loads.add(device)
                served |= {device} if compiles.ok else set()
            yield Check(f"{name} {device}", "ok" if runs.ok and compiles.ok else "note", text)
    for device in devices:
        if device not in served:
            remedy = "install what one of the backends above names, or import graphs that were compiled elsewhere"
            state: Literal["note", "problem"] = "note" if os.name == "nt" else "problem"  # where nothing ever does
            yield Check(f"compiling {device}", state, f"nothing compiles for {device} here", remedy)
    both, only = (", ".join(str(one) for one in devices if one in group) for group in (served, loads - served))
    text = f"Models can be compiled and graphs loaded here, for {both}." if both else "No model can be compiled here."
    if only:
        text += f" For {only}, graphs can be loaded only: install what is named above, or `onegraph import` some."
    elif not both:
        text += " Nor can graphs be loaded: install what is named above."
    yield Check("summary", "ok", text)


def _store() -> Iterator[Check]:
    from ..common.errors import in_brief
    from ..common.reasons import Reason
    from ..graph_cache.files import nearest
    from ..graph_cache.layout import user_folder
    from ..graph_cache.trust import private_folder
    from ..graph_cache.trust.signing import KEY_VARIABLE, Signer

    home = user_folder()
    yield Check("graph folder path", "ok", f"Graph folder: {home}")
    loaded_from = private_folder.locate(home)
    try:
        may_be_written = os.access(nearest(home), os.W_OK)
    except OSError:  # a file stands in the way
        may_be_written = False
    if not may_be_written:
        yield Check(
            "graph folder", "problem", f"the graph folder {home} cannot be written",
            "set ONEGRAPH_HOME to a folder that this user can write",
        )  # fmt: skip
    elif loaded_from != home:
        yield Check(
            "graph folder", "note", f"others may write the graph folder, so that graphs are loaded from {loaded_from}",
            "take the right to write it from others, or set ONEGRAPH_HOME to a folder of this user alone",
        )  # fmt: skip
    try:
        key = Signer(home).read_key()
    except OSError as error:
        yield Check("signing key", "problem", f"the key cannot be read: {in_brief(error)}", "look after that disk")
        return
    refused = key if isinstance(key, Reason) else Signer(home).refused_key()
    if refused is not None:
        close = "chmod 600" if os.name == "posix" else "icacls"
        remedy = f"close it with {close}, or name a key in {KEY_VARIABLE}"
        yield Check("signing key", "problem" if isinstance(key, Reason) else "note", refused.text, remedy)
    else:
        text = (
            "graphs are signed with a key of this user" if key else "the first compile makes a key to sign graphs with"
        )
        yield Check("signing key", "ok", text)


def _disk() -> Iterator[Check]:
    from ..common import stored_reasons
    from ..common.reasons import BlockSmall
    from ..graph_cache.disk.report import totals
    from ..graph_cache.files import free_bytes
    from ..graph_cache.store import Store

    store = Store()
    sums = totals(store.disk, store.disk.entries())
    limit, taken = sums.budget_bytes, sums.bytes
    of = "no limit" if limit is None else size(limit)
    full = limit is not None and taken > limit
    remedy = "run `onegraph prune`, unpin graphs, or raise ONEGRAPH_DISK_BUDGET" if full else ""
    yield Check("budget", "note" if full else "ok", f"{counted(sums.graphs)}, {size(taken)} of {of}", remedy)
    for folder in dict.fromkeys([store.graphs, *store.disk.folders()]):
        free = free_bytes(folder)
        if free is not None and free < _LITTLE:
            text = f"{size(free)} are free for {folder}"
            yield Check("free space", "problem", text, "free some disk space, or set ONEGRAPH_HOME to another disk")
    if sums.states.get("stale"):
        text = f"{counted(sums.states['stale'])} of no use here any more"
        yield Check("stale graphs", "note", text, "`onegraph ls --all --long --filter state=stale` tells why; "
                      "`onegraph prune --unusable` removes them")  # fmt: skip
    if sums.states.get("quarantined"):
        text = f"{counted(sums.states['quarantined'])} quarantined"
        yield Check("quarantined graphs", "note", text, "`onegraph prune --unusable` removes them")
    for failed in store.notes.read().failures.values():
        for failure in failed.failures:
            if failure.reason.get("code") != BlockSmall.code:  # there nothing failed, and nothing is tried again
                why = stored_reasons.sentence(failure.reason)
                text = f"not compiled: {failed.component}, {failed.label}: {why}"
                yield Check("failed compile", "note", text, "`onegraph retry` has all of them tried again")


def _settings() -> Iterator[Check]:
    from ..graph_cache.disk import budget

    text = os.environ.get(budget.VARIABLE, "")
    try:
        budget.parse(text or "0")
    except ValueError as error:
        remedy = f"set {budget.VARIABLE} to a size such as 20GB; until then it is {size(budget.DEFAULT)}"
        yield Check("disk budget", "problem", f"{budget.VARIABLE}: {error}", remedy)
