"""Commands on the graph store and this machine: `onegraph ls`, `verify`, `bench`, `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .bench import bench

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Compiled graphs of ComfyUI-OneGraph.")
app.command()(bench)

Folders = Annotated[
    list[Path] | None, typer.Argument(help="Folders with checkpoints; the user's own graph folder is always included.")
]


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def _print(line: str) -> None:
    """Print a line as it is: no markup in it, and not broken at the terminal's width, so that paths can be copied."""
    Console().print(line, markup=False, highlight=False, soft_wrap=True)


@app.command("ls")
def list_graphs(folders: Folders = None) -> None:
    """List cached graphs: what they are for, their size, and what their first use on this machine showed."""
    from ..graph_cache.store import Store

    store = Store()
    table = Table("model", "component", "shapes", "dtype", "backend", "size", "to eager", "speed")
    total = 0
    for entry in store.entries(folders or []):
        manifest, first_use = entry.manifest, store.first_use(entry)
        total += entry.bytes
        cells = (
            f"{entry.folder.parents[2].name.removesuffix('.graphs')}/{entry.folder.parents[1].name}",
            str(manifest.key.get("component", "")),
            manifest.label,
            str(manifest.key.get("dtype", "")),
            str(manifest.key.get("backend", "")),
            _size(entry.bytes),
            f"{max(first_use.checked.values()):.1e}" if first_use.checked else "not used yet",
            f"{first_use.speedup:.2f}x" if first_use.speedup else "",
        )
        table.add_row(*map(escape, cells))  # a folder or a label may hold what rich takes for markup
    Console().print(table)
    _print(f"{table.row_count} graphs, {_size(total)}; graph folder {store.home}")


@app.command()
def verify(folders: Folders = None) -> None:
    """Check every file of every cached graph against its manifest. Exit code 1 when one is damaged."""
    from ..common.messages import damage
    from ..common.reasons import Damaged
    from ..graph_cache.store import Store

    damaged = 0
    for folder, state in Store().check_all(folders or []):
        damaged += isinstance(state, Damaged)
        _print(f"{f'damaged: {damage(state)}' if isinstance(state, Damaged) else 'sound'}  {folder}")
    raise typer.Exit(1 if damaged else 0)


@app.command()
def doctor() -> None:
    """Show what works on this machine: backends, compilers, the graph folder."""
    import torch

    from .. import backends
    from ..graph_cache.layout import user_folder

    devices = [torch.device("cpu"), *(torch.device("cuda", i) for i in range(torch.cuda.device_count()))]
    _print(f"torch {torch.__version__}, graph folder {user_folder()}")
    for name in backends.known():
        backend = backends.get(name)
        for device in devices:
            runs, compiles = backend.can_run(device), backend.can_compile(device)
            _print(
                f"{name} on {device}: runs graphs: {'yes' if runs.ok else runs.reason}; "
                f"compiles: {'yes' if compiles.ok else compiles.reason}"
            )
