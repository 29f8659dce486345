"""Commands on the graph store and this machine: `onegraph ls`, `verify`, `bench`, `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .bench import bench
from .output import print_line, print_table

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
        )
        rows.append(row)
    print_table(("model", "component", "shapes", "dtype", "backend", "size", "to eager", "speed"), rows)
    print_line(f"{len(rows)} graphs, {_size(total)}; graph folder {store.home}")


@app.command()
def verify(folders: Folders = None) -> None:
    """Check every file of every cached graph against its manifest. Exit code 1 unless all are sound."""
    from ..common.messages import damage, text
    from ..common.reasons import Damaged, UnreadableNow
    from ..graph_cache.integrity import Sound
    from ..graph_cache.store import Store

    wrong = 0
    for folder, state in Store().check_all(folders or []):
        if isinstance(state, Damaged):
            found = f"damaged: {damage(state)}"
        else:
            found = f"unreadable: {text(state)}" if isinstance(state, UnreadableNow) else "sound"
        wrong += not isinstance(state, Sound)
        print_line(f"{found}  {folder}")
    raise typer.Exit(1 if wrong else 0)


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
