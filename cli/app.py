"""The `onegraph` command: all commands, and `onegraph verify`.

Exit codes are documented in docs/cli.md.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ..common.version import __version__
from .bench import bench
from .doctor import doctor
from .explain import explain
from .fleet import collect, mirror, pull, push, show_log, withdraw
from .graphs import list_graphs, pin, prune, stats, unpin
from .insert import insert
from .output import Json, print_json, print_line
from .paths import Folders
from .retry import retry
from .sharing import export_graphs, import_graphs, trust
from .workflow import bake

app = typer.Typer(
    no_args_is_help=True,
    help="Compiled graphs of ComfyUI-OneGraph.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        print_line(f"onegraph {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", "-V", is_eager=True, callback=_print_version, help="Show the version.")
    ] = False,
) -> None:
    """Compiled graphs of ComfyUI-OneGraph."""


app.command("ls")(list_graphs)
app.command()(stats)


@app.command()
def verify(folders: Folders = None, as_json: Json = False) -> None:
    """Check every cached graph's signature and files. Exit code 1 unless all are sound."""
    from ..common.reasons import Reason
    from ..graph_cache.integrity import Sound, describe
    from ..graph_cache.store import Store

    store, count, wrong = Store(), 0, 0
    rows = []
    for folder, state in store.check_all(folders or []):
        count += 1
        wrong += not isinstance(state, Sound)
        if as_json:
            code = state.code if isinstance(state, Reason) else "sound"
            rows.append({"folder": str(folder), "code": code, "text": describe(state)})
        else:
            print_line(f"{describe(state)}  {folder}")
    if as_json:
        print_json({"graphs": rows})
    elif not count:
        print_line(f"0 graphs in {', '.join(map(str, folders or [store.home]))}")
    raise typer.Exit(1 if wrong else 0)


app.command()(prune)
app.command()(pin)
app.command()(unpin)
app.command()(explain)
app.command()(bake)
app.command()(insert)
app.command()(doctor)
app.command()(retry)
app.command()(bench)
app.command("export")(export_graphs)
app.command("import")(import_graphs)
app.add_typer(trust, name="trust")
app.command()(push)
app.command()(pull)
app.command()(mirror)
app.command()(withdraw)
app.command("log")(show_log)
app.command("gc")(collect)
