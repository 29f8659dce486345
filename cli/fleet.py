"""Commands on remote stores: `push`, `pull`, `mirror`, `withdraw`, `log` and `gc`. None of them imports torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import Json, print_either, print_line, size
from .paths import SharedFolders
from .sharing import PublisherName, key_file_of, plain_errors, refuse, trusted_publishers

if TYPE_CHECKING:
    from ..graph_cache.entry import Entry
    from ..graph_cache.sources.source import Transfer
    from ..graph_cache.sources.transport import Remote

Where = Annotated[str, typer.Argument(metavar="STORE", help="An address: https://, s3://, gs://, hf:// or file:///.")]


def push(
    store: Where,
    folders: SharedFolders = None,
    publisher: PublisherName = "",
    as_json: Json = False,
) -> None:
    """Put graphs into a remote store, signed with your publisher's key: those that you may load yourself, each once.

    What is there already is not sent again, so that a push that was stopped goes on when it is run again. Machines that
    trust the key read the store where ONEGRAPH_STORES names it.
    """
    from ..graph_cache.sources import exporting, pushing
    from ..graph_cache.store import Store
    from ..graph_cache.trust import ed25519, key_file

    here = Store()
    path = key_file_of(publisher, here.home)
    remote = opened(store)
    with plain_errors("push"):
        ed25519.require()  # before a key is made in vain
        entries: list[Entry] = [entry for folder in folders or [here.home] for entry in exporting.find(folder)]
        if not entries:
            _tell([], as_json, "0 graphs pushed", ok=False)
            return
        pusher = pushing.Pusher(remote, key_file.obtain(path), here.home)
        with _shown(sum(entry.manifest.bytes for entry in entries), as_json) as progress:
            done = _each(pushing.push(here, entries, pusher, progress), as_json)
    written = sum(one.did == "pushed" for one in done)
    unchanged = sum(one.did == "there already" for one in done)
    text = f"{written} graphs pushed, {unchanged} there already, {size(sum(one.bytes for one in done))}"
    if not as_json and written + unchanged:
        print_line(f"Others trust these graphs after: onegraph trust add {publisher or 'NAME'} {pusher.public}")
    _tell(done, as_json, text, ok=bool(written + unchanged), key=pusher.public)


def pull(
    store: Where,
    trust: Annotated[
        str, typer.Option("--trust", help="A trusted publisher, by the name that you gave; else all.")
    ] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Also graphs for another torch or system than this machine's.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Fetch the graphs of publishers whom you trust into your graph folder, as for an image that workers start from.

    Each is verified before it is kept. What is there already is not fetched again.
    """
    from ..common.reasons import PublisherNotTrusted, StoreWithoutPublisher
    from ..graph_cache.sources import commands
    from ..graph_cache.sources import remote as remotes
    from ..graph_cache.store import Store
    from ..graph_cache.trust import ed25519

    here = Store()
    remote = existing(store)
    done: list[Transfer] = []
    with plain_errors("pull"):
        ed25519.require()
        trusted = trusted_publishers(here.home)
        if trust and trust not in trusted:
            refuse(PublisherNotTrusted(trust))
        if not trusted:
            refuse(StoreWithoutPublisher(remote.label))
        with _shown(None, as_json) as progress:
            for publisher in remotes.in_order(trusted):
                if trust in ("", publisher.name):
                    fits = (lambda manifest: True) if everything else commands.fits_here
                    done += _each(commands.pull(here, remote, publisher, fits, progress), as_json)
    pulled = sum(one.did == "pulled" for one in done)
    unchanged = sum(one.did == "there already" for one in done)
    others = sum(one.did == "for another machine" for one in done)
    text = f"{pulled} graphs pulled, {unchanged} there already, {others} for other machines"
    _tell(done, as_json, f"{text}, {size(sum(one.bytes for one in done))}", ok=all(one.reason is None for one in done))


def mirror(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The store to copy; one that can be listed.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The store to copy to.")],
    as_json: Json = False,
) -> None:
    """Copy a remote store, whoever signed what is in it. A copy that was stopped goes on when it is run again."""
    from ..graph_cache.sources import commands

    readable, writable = existing(source), opened(target)
    with plain_errors("mirror"), _shown(None, as_json) as progress:
        done = _each(commands.mirror(readable, writable, progress), as_json, quiet=("there already", "copied"))
    copied = [one for one in done if one.did == "copied"]
    text = f"{len(copied)} files copied, {size(sum(one.bytes for one in copied))}"
    _tell([one for one in done if one.reason is not None], as_json, text, ok=all(one.reason is None for one in done))


def withdraw(
    store: Where,
    names: Annotated[
        list[str],
        typer.Argument(
            help="Graphs in your folders, as for `onegraph pin`; or in the store, by key as a bake prints it."
        ),
    ],
    publisher: PublisherName = "",
    as_json: Json = False,
) -> None:
    """Take graphs back from a remote store: machines that read it use them no more, copies included.

    They learn of it at their next start, or within an hour where they look for graphs.
    """
    from blake3 import blake3

    from ..common.reasons import NoPublisherKey, Reason
    from ..graph_cache.disk.report import find
    from ..graph_cache.entry import Entry, read
    from ..graph_cache.sources.pushing import Pusher
    from ..graph_cache.store import Store
    from ..graph_cache.trust import key_file

    here = Store()
    path = key_file_of(publisher, here.home)
    with plain_errors("withdraw"):
        private = key_file.read(path)
        if private is None:
            refuse(NoPublisherKey())
        if isinstance(private, Reason):
            refuse(private)
        listed = [*here.disk.entries(), *here.disk.copies()]
        remote = existing(store)
        pusher = Pusher(remote, private, here.home)
        texts: dict[str, str] = {}
        unknown = []
        for name in names:
            entries = [entry for one in find(listed, name) if isinstance(entry := read(one.path), Entry)]
            named = {blake3(entry.text).hexdigest(): entry.folder.name for entry in entries}
            named |= _in_store(remote, pusher.public, name)
            texts |= named
            unknown += [] if named else [name]
        if unknown:
            print_line(f"No graph here or in the store has such a name: {', '.join(unknown)}. Nothing is withdrawn.")
            raise typer.Exit(1)
        after = pusher.withdraw(texts)
    lines = [f"withdrawn  {folder}  {digest[:12]}" for digest, folder in texts.items()]
    data = {"withdrawn": sorted(texts), "total": len(after)}
    print_either(as_json, data, *lines, f"{len(texts)} graphs withdrawn; {len(after)} so far")


def _in_store(remote: Remote, public: str, name: str) -> dict[str, str]:
    """Find what a publisher has in a store, by the begin of a key or of a manifest's digest: digest -> key."""
    from ..graph_cache.sources.records import named

    texts = {}
    for path in remote.list(f"graphs/{public}"):
        one, key = named(path), path.split("/")[-2]
        if one is not None and len(name) >= 8 and (key.startswith(name) or one.digest.startswith(name)):
            texts[one.digest] = key[:12]
    return texts


def show_log(
    store: Where,
    publisher: Annotated[
        str, typer.Option(help="A trusted publisher, by the name that you gave, or any by the public key; else all.")
    ] = "",
    accept: Annotated[
        bool, typer.Option("--accept", help="Forget what you saw of it before: its publisher told you of a new log.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List what publishers published in a remote store and withdrew from it, and tell whether that log is whole.

    Exit code 1 if a line was changed or left out, or if it does not go on from what you saw of it before.
    """
    from ..common.reasons import PublisherNotTrusted, Reason, StoreLog
    from ..graph_cache.layout import user_folder
    from ..graph_cache.sources import published_log
    from ..graph_cache.sources.records import Publisher
    from ..graph_cache.sources.remote import in_order
    from ..graph_cache.sources.transport import StoreError

    home, remote, rows, ok = user_folder(), existing(store), list[dict[str, Any]](), True
    with plain_errors("read the log"):
        named = [one for one in in_order(trusted_publishers(home)) if publisher in ("", one.name, one.key)]
        if publisher and not named and re.fullmatch("[0-9a-f]{64}", publisher):
            named = [Publisher(publisher[:12], publisher)]
        if publisher and not named:
            refuse(PublisherNotTrusted(publisher))
        for one in named:
            wrong: Reason | None = None
            if accept:
                published_log.forget(home, remote, one.key)
            try:
                published_log.look(remote, one, home)
            except StoreError as error:
                if not isinstance(error.reason, StoreLog):
                    raise
                wrong, ok = error.reason, False
            data = remote.read(published_log.log_name(one.key), published_log.MOST_BYTES)
            log, _ = published_log.read(data or b"", remote.label, one)
            lines = [line.model_dump(include={"number", "what", "key", "manifest"}) for line in log.entries]
            whole = f"{len(lines)} lines, whole, head {log.digests[-1]}" if data else "no log"
            code, text = (wrong.code, wrong.text) if wrong else ("", whole)
            row = {"publisher": one.name, "key": one.key, "lines": lines, "head": log.digests[-1]}
            rows.append({**row, "code": code, "text": text})
    texts = [
        text
        for row in rows
        for text in (
            *(f"{one['number']}  {one['what']}  {one['key'][:12]}  {one['manifest'][:12]}" for one in row["lines"]),
            f"{row['publisher']}: {row['text']}",
        )
    ]
    print_either(as_json, {"logs": rows}, *texts, *([] if rows else ["0 publishers trusted"]))
    raise typer.Exit(0 if ok else 1)


def collect(
    store: Where,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would go, and remove nothing.")] = False,
    grace: Annotated[float, typer.Option(help="Hours that a file must be old, for others may be pushing.")] = 24.0,
    as_json: Json = False,
) -> None:
    """Remove from a remote store the files that no graph of it needs, such as those of withdrawn graphs."""
    from ..graph_cache.sources import commands

    remote = existing(store)
    with plain_errors("collect garbage"):
        garbage = commands.garbage(remote, 3600 * grace)
        if not dry_run:
            for name in garbage.names:
                remote.remove(name)
    freed = sum(garbage.names.values())
    data = {
        "files": [*garbage.names], "bytes": freed, "kept_bytes": garbage.kept, "young": garbage.young,
        "dry_run": dry_run,
    }  # fmt: skip
    verb = "would go" if dry_run else "removed"
    lines = [f"{verb}  {name}  {size(count)}" for name, count in garbage.names.items()]
    left = f"{garbage.young} files are too young" if garbage.young else f"{size(garbage.kept)} are needed"
    print_either(as_json, data, *lines, f"{len(garbage.names)} files {verb}, {size(freed)}; {left}")


def opened(text: str) -> Remote:
    """Open a store by its address, or end the command."""
    from ..common.reasons import StoreBadAddress
    from ..graph_cache.sources import transport
    from ..graph_cache.sources.transport import Remote

    where = transport.parse(text)
    if isinstance(where, StoreBadAddress):
        refuse(where)
    return Remote(where, 60.0)


def existing(text: str) -> Remote:
    """As `opened`, of a store that something was pushed to: a folder that is not there is a typing error."""
    remote = opened(text)
    if remote.address.scheme == "file" and not Path(remote.address.url).is_dir():
        raise typer.BadParameter(f"{remote.address.url} does not exist.")
    return remote


def _each(steps: Iterable[Transfer], as_json: bool, quiet: tuple[str, ...] = ()) -> list[Transfer]:
    """Print what is done as it is done."""
    done = []
    for one in steps:
        done.append(one)
        if not as_json and one.did not in quiet:
            why = f", {one.reason.text}" if one.reason is not None else ""
            print_line(f"{one.did}{why}  {one.name}")
    return done


def _tell(done: list[Transfer], as_json: bool, text: str, *, ok: bool, **more: Any) -> None:
    """Print the last line, or all as one document; and end the command."""
    rows = [
        {"name": one.name, "did": one.did, "bytes": one.bytes, "code": one.reason.code if one.reason else ""}
        for one in done
    ]
    print_either(as_json, {"graphs": rows, **more}, text)
    raise typer.Exit(0 if ok else 1)


@contextmanager
def _shown(total: int | None, as_json: bool) -> Iterator[Callable[[int], None] | None]:
    """Show bytes on standard error, which leaves standard output to the result."""
    if as_json:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
