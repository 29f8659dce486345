"""The `onegraph` command: all commands, and `onegraph verify`.

Exit codes are documented in docs/cli.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from ..common.version import __version__
from .bench import bench
from .doctor import doctor
from .explain import explain
from .fleet import collect, mirror, pull, push, show_log, withdraw
from .graphs import list_graphs, pin, prune, stats, unpin
from .help import Command, Group
from .insert import insert
from .output import Json, counted, print_error, print_json, print_line, print_no_graphs
from .paths import Folders
from .retry import retry
from .sharing import export_graphs, import_graphs, trust
from .workflow import bake

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,  # boxes around errors break paths, which are there to be copied
    pretty_exceptions_enable=False,
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
    """Compile ComfyUI's models once, and load the compiled graphs ever after.

    Begin with `onegraph doctor`. `onegraph COMMAND -h` tells more of a command.
    """


def verify(folders: Folders = None, as_json: Json = False) -> None:
    """Check the signature and files of every cached graph. Exit code 1 unless all are sound."""
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
        print_no_graphs(store.home, *(folders or []))
    elif wrong:
        print_error(f"{wrong} of {counted(count)} cannot be used. The next run compiles new ones in their place.")
    raise typer.Exit(1 if wrong else 0)


_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Get started": {"doctor": doctor, "insert": insert, "bake": bake, "explain": explain, "bench": bench},
    "Graphs on this machine": {
        "ls": list_graphs, "stats": stats, "verify": verify, "prune": prune, "pin": pin, "unpin": unpin, "retry": retry,
    },
    "Share graphs": {"export": export_graphs, "import": import_graphs},
    "Remote stores": {
        "push": push, "pull": pull, "log": show_log, "withdraw": withdraw, "mirror": mirror, "gc": collect,
    },
}  # fmt: skip
for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        app.command(_name, cls=Command, rich_help_panel=_panel)(_command)
app.add_typer(trust, name="trust", rich_help_panel="Share graphs")
