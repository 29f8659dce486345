"""Commands that give graphs to others and take them over: `onegraph export`, `import` and `trust`.

Nothing else does: no node, no workflow and no route reaches what these call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from .help import Command, Group
from .output import NO_GRAPHS, Json, counted, print_either, print_error, print_json, print_line
from .paths import SharedFolders, only_existing

if TYPE_CHECKING:
    from ..common.reasons import Reason

trust = typer.Typer(cls=Group, no_args_is_help=True, help="Manage the publishers whose graphs are loaded here, too.")

NOBODY = (
    "No publishers trusted yet. `onegraph trust add NAME KEY` trusts one, whose key `onegraph trust show` prints there."
)
PublisherName = Annotated[
    str, typer.Option(help="Which of your publisher's keys, by a name; made at its first export.")
]


@trust.command("add", cls=Command)
def add_publisher(
    name: Annotated[str, typer.Argument(help="What you call the publisher.")],
    public_key: Annotated[str, typer.Argument(help="64 hex digits, which the publisher gave you in person.")],
    as_json: Json = False,
) -> None:
    """Trust a publisher. Graphs signed with that key run as native code on this machine."""
    from ..graph_cache.layout import user_folder
    from ..graph_cache.trust import trust_list
    from ..graph_cache.trust.publishers import Publishers

    with plain_errors("trust the publisher"):
        reason = trust_list.add(Publishers(user_folder()), name, public_key)
    if reason is not None:
        refuse(reason)
    print_either(as_json, {"trusted": name, "key": public_key}, f"{name} is trusted")


@trust.command("list", cls=Command)
def list_publishers(as_json: Json = False) -> None:
    """List the publishers that are trusted, with their public keys."""
    from ..graph_cache.layout import user_folder

    with plain_errors("read the publishers"):
        trusted = trusted_publishers(user_folder())
    lines = [f"{key}  {name}" for name, key in sorted(trusted.items())]  # keys whole, to be compared and copied
    data = {"publishers": dict(sorted(trusted.items()))}
    print_either(as_json, data, *lines, counted(len(trusted), "publisher") + " trusted" if trusted else NOBODY)


@trust.command("remove", cls=Command)
def remove_publisher(
    name: Annotated[str, typer.Argument(help="As `onegraph trust list` shows it.")], as_json: Json = False
) -> None:
    """Trust a publisher no longer. Graphs that you imported stay, since you signed them as your own."""
    from ..common.reasons import PublisherListRefused, PublisherNotTrusted
    from ..graph_cache.layout import user_folder
    from ..graph_cache.trust import trust_list
    from ..graph_cache.trust.publishers import Publishers

    with plain_errors("change the publishers"):
        removed = trust_list.remove(Publishers(user_folder()), name)
    if isinstance(removed, PublisherListRefused):
        refuse(removed)
    if not removed:
        refuse(PublisherNotTrusted(name))
    print_either(as_json, {"removed": name}, f"{name} is trusted no longer")


@trust.command("show", cls=Command)
def show_own_key(publisher: PublisherName = "", as_json: Json = False) -> None:
    """Print your own public key, for those who are to trust you."""
    from ..common.reasons import NoPublisherKey, SigningKeyRefused
    from ..graph_cache.layout import user_folder
    from ..graph_cache.sources import exporting

    with plain_errors("read the key"):
        key = exporting.public_key(key_file_of(publisher, user_folder()))
    if key is None:
        refuse(NoPublisherKey())
    if isinstance(key, SigningKeyRefused):
        refuse(key)
    print_either(as_json, {"key": key}, key)


def export_graphs(
    to: Annotated[
        Path, typer.Option("--to", metavar="PATH", help="A new file that ends in .tar, or a folder to add to.")
    ],
    folders: SharedFolders = None,
    publisher: PublisherName = "",
    as_json: Json = False,
) -> None:
    """Write graphs for others, signed with your publisher's key.

    All that you may load yourself are written, each once. Others run `onegraph trust add` with your public key, then
    `onegraph import --trust`. A folder can also be used where it is by all who trust you, as a store that is only read.
    """
    from ..common.reasons import TargetExists
    from ..graph_cache.integrity import describe
    from ..graph_cache.sources import exporting
    from ..graph_cache.store import Store
    from ..graph_cache.trust import ed25519, key_file

    store = Store()
    path = key_file_of(publisher, store.home)
    if to.exists() and (to.suffix == exporting.TAR_SUFFIX or not to.is_dir()):
        refuse(TargetExists(to.name))
    written = 0
    rows: list[dict[str, object]] = []
    public = ""
    with plain_errors("export"):
        ed25519.require()  # before a key is made in vain
        entries = [entry for folder in folders or [store.graphs] for entry in exporting.find(folder)]
        private = key_file.obtain(path) if entries else b""
        for exported in exporting.export(store, entries, to, private) if entries else ():
            written += exported.reason is None
            what = "exported" if exported.reason is None else f"left out, {describe(exported.reason)}"
            rows.append({"folder": exported.name, "exported": exported.reason is None, "text": what})
            if not as_json:
                print_line(f"{what}  {exported.name}")
        public = ed25519.public_key(private) if written else ""
    lines = [
        f"Others trust these graphs after: onegraph trust add {publisher or 'NAME'} {public}",
        f"{counted(written)} exported to {to}",
    ]
    data = {"graphs": rows, "to": str(to), "key": public}
    nothing = f"None of {counted(len(rows))} can be exported. See above why." if rows else NO_GRAPHS
    print_either(as_json, data, *(lines if written else ()), errors=[] if written else [nothing])
    raise typer.Exit(0 if written else 1)


def import_graphs(
    publisher: Annotated[
        str, typer.Option("--trust", help="The trusted publisher who exported it, by the name that you gave.")
    ],
    paths: Annotated[list[Path], typer.Argument(callback=only_existing, help="What was exported: files or folders.")],
    as_json: Json = False,
) -> None:
    """Copy what a trusted publisher exported into your graph folder.

    A graph is native code. Every graph is verified against the publisher's key before anything is written.
    """
    from ..common.reasons import Reason
    from ..graph_cache.sources import bundle
    from ..graph_cache.store import Store

    store = Store()
    rows: list[dict[str, object]] = []
    for path in paths:
        with plain_errors("import"):
            taken = bundle.import_bundle(store.private, store.signer, path, publisher)
        if isinstance(taken, Reason):
            refuse(taken)
        rows += [{"folder": str(folder), "new": new} for folder, new in taken]
        if not as_json:
            for folder, new in taken:
                print_line(f"{'imported' if new else 'there already'}  {folder}")
            print_line(f"{counted(sum(new for _, new in taken))} imported")
    if as_json:
        print_json({"graphs": rows})


def trusted_publishers(home: Path) -> Mapping[str, str]:
    """Return the public keys of the publishers whom the user trusts, by name, or end the command. Raises OSError."""
    from ..common.reasons import PublisherListRefused
    from ..graph_cache.trust.publishers import Publishers

    trusted = Publishers(home).trusted()
    if isinstance(trusted, PublisherListRefused):
        refuse(trusted)
    return trusted


def key_file_of(publisher: str, home: Path) -> Path:
    """Return the file of the user's key as a publisher, or end the command: it is no name for one."""
    from ..common.reasons import BadPublisherName
    from ..graph_cache.sources import exporting

    path = exporting.key_path(home, publisher)
    if isinstance(path, BadPublisherName):
        refuse(path)
    return path


@contextmanager
def plain_errors(doing: str) -> Iterator[None]:
    """End a command with one line where something it needs fails."""
    from ..common.reasons import NeedsCryptography
    from ..graph_cache.sources.transport import StoreError
    from ..graph_cache.trust.ed25519 import NoCryptographyError

    try:
        yield
    except NoCryptographyError:
        refuse(NeedsCryptography())
    except StoreError as error:
        refuse(error.reason)
    except OSError as error:
        print_error(f"Cannot {doing}: {error}")
        raise typer.Exit(1) from error


def refuse(reason: Reason) -> NoReturn:
    """End a command with a reason."""
    print_error(reason.text)
    raise typer.Exit(1)
