"""Commands on the graph store and this machine: `onegraph ls`, `verify`, `doctor`, and those of other modules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .bench import bench
from .output import describe, print_line, print_table
from .retry import retry
from .sharing import export_graphs, import_graphs, trust

if TYPE_CHECKING:
    from ..common.reasons import UnreadableNow, Untrusted
    from ..graph_cache.trust.signing import Trusted
app = typer.Typer(no_args_is_help=True, add_completion=False, help="Compiled graphs of ComfyUI-OneGraph.")
app.command()(bench)
app.command()(retry)
app.command("export")(export_graphs)
app.command("import")(import_graphs)
app.add_typer(trust, name="trust")

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
        key, used = entry.manifest.key, store.first_use(entry)
        worst = max(used.checked.values(), default=None)
        total += entry.bytes
        row = (
            f"{entry.folder.parents[2].name.removesuffix('.graphs')}/{entry.folder.parents[1].name}",
            str(key.get("component", "")),
            entry.manifest.label,
            str(key.get("dtype", "")),
            str(key.get("backend", "")),
            _size(entry.bytes),
            "not used yet" if worst is None else f"{worst:.1e}",
            f"{used.speedup:.2f}x" if used.speedup else "",
            _trust(store.provenance(entry)),
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
        print_line(f"{describe(state)}  {folder}")
    raise typer.Exit(1 if wrong else 0)


def _trust(whose: Trusted | UnreadableNow | Untrusted) -> str:
    from ..common.reasons import Reason

    if isinstance(whose, Reason):
        return whose.code.replace("_", " ")
    return "signed" if whose.publisher is None else f"from {whose.publisher}"


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
