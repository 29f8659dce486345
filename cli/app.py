"""Commands on the graph store and this machine: `onegraph ls`, `verify`, `bench`, `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from .bench import bench

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Compiled graphs of ComfyUI-OneGraph.")
console = Console()
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
    table = Table("model", "component", "shapes", "dtype", "backend", "size", "to eager", "speed")
    total = 0
    for entry in store.entries(folders or []):
        manifest, outcome = entry.manifest, store.outcome(entry)
        total += entry.bytes
        table.add_row(
            f"{entry.folder.parents[2].name.removesuffix('.graphs')}/{entry.folder.parents[1].name}",
            manifest.key["component"],
            manifest.label,
            manifest.key["dtype"],
            manifest.key["backend"],
            _size(entry.bytes),
            f"{max(outcome.checked.values()):.1e}" if outcome.checked else "not used yet",
            f"{outcome.speedup:.2f}x" if outcome.speedup else "",
        )
    console.print(table)
    console.print(f"{table.row_count} graphs, {_size(total)}; graph folder {store.home}")


@app.command()
def verify(folders: Folders = None) -> None:
    """Check every file of every cached graph against its manifest. Exit code 1 when one is damaged."""
    from ..graph_cache.store import Damaged, Store, check

    damaged = 0
    for entry in Store().entries(folders or []):
        state = check(entry)
        damaged += isinstance(state, Damaged)
        console.print(f"{'damaged: ' + state.reason if isinstance(state, Damaged) else 'sound'}  {entry.folder}")
    raise typer.Exit(1 if damaged else 0)


@app.command()
def doctor() -> None:
    """Say what works on this machine: backends, compilers, the graph folder."""
    import torch

    from .. import backends
    from ..graph_cache.store import user_folder

    devices = [torch.device("cpu"), *(torch.device("cuda", i) for i in range(torch.cuda.device_count()))]
    console.print(f"torch {torch.__version__}, graph folder {user_folder()}")
    for name in backends.known():
        backend = backends.get(name)
        for device in devices:
            runs, compiles = backend.can_run(device), backend.can_compile(device)
            console.print(
                f"{name} on {device}: runs graphs: {'yes' if runs.ok else runs.reason}; "
                f"compiles: {'yes' if compiles.ok else compiles.reason}"
            )
