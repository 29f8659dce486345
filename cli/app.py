"""Commands on the graph store and this machine: `onegraph ls`, `verify`, `import`, `bench`, `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .bench import bench
from .output import print_line, print_table

if TYPE_CHECKING:
    from ..common.reasons import UnreadableNow, Untrusted
    from ..graph_cache.store import State

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Compiled graphs of ComfyUI-OneGraph.")
app.command()(bench)

Folders = Annotated[
    list[Path] | None, typer.Argument(help="Folders with checkpoints; the user's own graph folder is always included.")
]


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


@app.command("ls")
def list_graphs(folders: Folders = None) -> None:
    """List cached graphs: what they are for, their size, and what their first use on this machine showed."""
    from ..graph_cache.store import Store

    store = Store()
    rows: list[tuple[str, ...]] = []
    total = 0
    for entry in store.entries(folders or []):
        manifest, first_use = entry.manifest, store.first_use(entry)
        total += entry.bytes
        row = (
            f"{entry.folder.parents[2].name.removesuffix('.graphs')}/{entry.folder.parents[1].name}",
            str(manifest.key.get("component", "")),
            manifest.label,
            str(manifest.key.get("dtype", "")),
            str(manifest.key.get("backend", "")),
            _size(entry.bytes),
            f"{max(first_use.checked.values()):.1e}" if first_use.checked else "not used yet",
            f"{first_use.speedup:.2f}x" if first_use.speedup else "",
            _trust(store.trust(entry)),
        )
        rows.append(row)
    print_table(("model", "component", "shapes", "dtype", "backend", "size", "to eager", "speed", "state"), rows)
    print_line(f"{len(rows)} graphs, {_size(total)}; graph folder {store.home}")


@app.command()
def verify(folders: Folders = None) -> None:
    """Check every cached graph's owner, signature and files. Exit code 1 unless all are sound."""
    from ..graph_cache.integrity import Sound
    from ..graph_cache.store import Store

    wrong = 0
    for folder, state in Store().check_all(folders or []):
        wrong += not isinstance(state, Sound)
        print_line(f"{_found(state)}  {folder}")
    raise typer.Exit(1 if wrong else 0)


@app.command("import")
def import_graphs(
    mine: Annotated[bool, typer.Option("--mine", help="Sign your own graphs that have no signature.")] = False,
    folders: Folders = None,
) -> None:
    """Sign cached graphs that have no signature, so that they are used. Only those that you know to be your own.

    A graph is native code. Signed are whole graphs whose files and folders belong to you and that nobody else may
    write; how they came there is for you to know.
    """
    from ..graph_cache.integrity import Sound
    from ..graph_cache.store import Store

    if not mine:
        raise typer.BadParameter("Only --mine is known: it signs your own graphs.")
    signed = 0
    try:
        for folder, state in Store().sign_own(folders or []):
            signed += isinstance(state, Sound)
            print_line(f"signed  {folder}" if isinstance(state, Sound) else f"left as it is, {_found(state)}  {folder}")
    except OSError as error:
        print_line(f"cannot sign: {error}")
        raise typer.Exit(1) from error
    print_line(f"{signed} graphs signed")


def _found(state: State) -> str:
    """What was found of an entry, in a word and a clause."""
    from ..common.messages import damage, text
    from ..common.reasons import Damaged, UnreadableNow, Untrusted

    if isinstance(state, Damaged):
        return f"damaged: {damage(state)}"
    if isinstance(state, Untrusted):
        return f"not trusted: {text(state)}"
    return f"unreadable: {text(state)}" if isinstance(state, UnreadableNow) else "sound"


def _trust(why: Untrusted | UnreadableNow | None) -> str:
    return "signed" if why is None else why.code.replace("_", " ")


@app.command()
def doctor() -> None:
    """Show what works on this machine: backends, compilers, the graph folder."""
    import torch

    from .. import backends
    from ..graph_cache.layout import user_folder

    devices = [torch.device("cpu"), *(torch.device("cuda", i) for i in range(torch.cuda.device_count()))]
    print_line(f"torch {torch.__version__}, graph folder {user_folder()}")
    for name in backends.known():
        backend = backends.get(name)
        for device in devices:
            runs, compiles = backend.can_run(device), backend.can_compile(device)
            print_line(
                f"{name} on {device}: runs graphs: {'yes' if runs.ok else runs.text}; "
                f"compiles: {'yes' if compiles.ok else compiles.text}"
            )
