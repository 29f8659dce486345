"""The store: the home, from which graphs are loaded, and the sources that graphs come to it from.

How a graph gets into a process:

1. `find` looks for its entry in the home, if this user's installation or a trusted publisher signed it. It changes
   nothing. What it misses `take` copies to the home from the first source that has it: beside the checkpoint, beside
   others, in further `sources`, in remote stores.
2. After a miss, a compile fills a folder of `staging`, and `publish` makes it an entry by one rename. `keep_beside`
   writes a copy beside the checkpoint, which travels with it.
3. The entry is loaded from where it lies: `constants` are the weights that it reads, and `loading` marks the moments in
   which a bad graph could take the process down. `note_death` counts a marker that stayed. After the first a child
   process tries the graph; the second in a row makes the entry broken for the next look-up. `note_success` forgets the
   first. `lease` keeps others from removing the entry as long as a process has it loaded (`disk`).
4. `remember` writes what the first use showed beside the manifest; `first_use` reads it in later processes.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from ..common import reasons
from ..common.log import logger
from ..common.reasons import Reason
from . import copies, first_use_results, layout
from .crash.markers import Markers
from .disk import leases, marks
from .disk.inventory import Inventory
from .disk.leases import Lease
from .entry import Entry, read
from .first_use_results import FirstUse
from .home import Home, SignedGraph
from .integrity import Sound, check
from .key import GraphKey, key_digest
from .layout import GRAPHS_FOLDER, user_folder
from .lookup import MOST_COMPARED, Broken, Differs, Hit, Judged, Lookup, Miss, no_objection
from .machine_notes import MachineNotes
from .model_hash import ModelSource
from .publish import NewEntry, NotPublishedError, manifest_of
from .sources import folder as folders
from .sources.folder import FolderSource
from .sources.remote import Layers
from .sources.source import Source, Taken, Wanted
from .trust.signing import SIGNATURE_FILE, FaultyEntry, Signer, TrustedEntry, read_trusted

log = logger("graph_cache")

CheckResult = (
    Sound | reasons.Damaged | reasons.NewerManifest | reasons.OlderManifest | reasons.UnreadableNow | reasons.Untrusted
)


class Store:
    """All entries reachable from one user.

    Args:
        home: the user's graph folder, where it is not the usual one.

    Attributes:
        home: that folder, which has the user's keys, lists and settings.
        private: what graphs are loaded from, in that folder unless others may write it.
        sources: further ones, asked after folders and before remote stores; to be appended to.
    """

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or user_folder()
        self.signer = Signer(self.home)
        self.private = Home(self.home, self.signer)
        self.notes = MachineNotes(lambda: self.private.folder)
        self.disk = Inventory(self.private, self.notes)
        self.private.room = self.disk.room
        self.markers = Markers(self.private.folder)
        self._lookup = Lookup(self.private, self.markers)
        self.sources: list[Source] = []
        self.remotes = Layers(self.home)

    @property
    def graphs(self) -> Path:
        """The folder that graphs are loaded from."""
        return self.private.graphs

    # Looking up ---------------------------------------------------------------------------------------------

    def find(self, key: GraphKey, differs: Differs = no_objection, model: str = "") -> Judged:
        """Look for the entry of a key in the home. Changes nothing, on the disk or here.

        Args:
            differs: why an entry of the same key cannot be used here all the same, or None.
            model: digest of the model, whose other graphs a miss tells of.

        Returns:
            A hit; or what was nearest; or an entry that is damaged or took a process down; or one that cannot be read
            now.
        """
        return self._lookup.find(key, _with_versions(differs), model)

    def lookup(
        self,
        key: GraphKey,
        source: ModelSource,
        neighbours: Iterable[Path] = (),
        differs: Differs = no_objection,
    ) -> Judged:
        """As `find`, and after a miss look into the sources on this machine. Changes nothing.

        Args:
            source: the model, beside whose checkpoint copies come first.
            neighbours: folders with checkpoints, beside which copies are looked for, too.
        """
        judged = self.find(key, differs, source.digest)
        for one in key.alternatives if isinstance(judged, Miss) else ():
            condemned = self.private.condemned(one)
            for folder in self._folders(source, neighbours):
                for offer in folder.offers(one, _with_versions(differs), condemned):
                    if isinstance(offer, Entry) and isinstance(check(offer), Sound):
                        return Hit(offer, folder)
        return judged

    def take(
        self,
        key: GraphKey,
        source: ModelSource,
        neighbours: Iterable[Path] = (),
        differs: Differs = no_objection,
    ) -> Taken | Reason | None:
        """Copy the graph of a key to the home, from the first source that has it, verified on the way.

        It waits a bounded time for each remote store, and raises for nothing that a source does.

        Returns:
            Why what the sources have cannot be used; None: they have nothing.
        """
        sources, refused = [*self._folders(source, neighbours), *self.sources, self.remotes], None
        for one in key.alternatives:
            wanted = Wanted(key_digest(one.fields()), one, _with_versions(differs), self.private.condemned(one))
            taken = self._take(wanted, sources)
            if isinstance(taken, Taken):
                return taken
            refused = refused or taken
        return refused

    def take_named(self, digest: str, differs: Differs = no_objection) -> Taken | Reason | None:
        """Copy a graph to the home from further sources or remote stores, by the digest of its key (`key_digest`)."""
        return self._take(Wanted(digest, None, _with_versions(differs), []), [*self.sources, self.remotes])

    def _take(self, wanted: Wanted, sources: Iterable[Source]) -> Taken | Reason | None:
        refused: Reason | None = None
        for source in sources:
            try:
                taken = source.take(wanted, self.private)
            except Exception:  # somebody else's may break its promise: the next one may have the graph
                log.exception("a source of graphs failed: %s", type(source).__name__)
                continue
            if isinstance(taken, Taken):
                return taken
            refused = refused or taken
        return refused

    def sibling(self, key: GraphKey, differs: Differs = no_objection) -> Entry | None:
        """Look for a sound entry of the home that differs from `key` in the shapes alone."""
        wanted = {**key.fields(), "shapes": None}
        for entry in self.private.trusted(key.component):
            same = {**entry.manifest.key, "shapes": None} == wanted and differs(entry.manifest) is None
            if same and isinstance(check(entry), Sound):
                return entry
        return None

    def keys(
        self, component: str, architectures: Collection[str], source: ModelSource, neighbours: Iterable[Path] = ()
    ) -> list[dict[str, Any]]:
        """Read the fields of the keys of a component's trusted entries, whose files are not looked at.

        Args:
            architectures: digests. Sources are read until there is one of each.
        """
        by_digest: dict[str, dict[str, Any]] = {}
        missing = {*architectures}
        in_folders = (folder.entries(component) for folder in self._folders(source, neighbours))
        for entries in itertools.chain([self.private.trusted(component)], in_folders):
            for key in (entry.manifest.key for entry in entries):
                if key.get("architecture") in architectures:
                    by_digest.setdefault(key_digest(key), key)
            missing -= {key["architecture"] for key in by_digest.values()}
            if not missing:
                break
        return [*by_digest.values()]

    def nearest(self, key: GraphKey) -> Entry | None:
        """Read the entry of the home whose key differs from `key` in the fewest fields."""
        wanted = key.fields()
        entries = itertools.islice(self.private.trusted(key.component), MOST_COMPARED)
        return min(
            entries,
            key=lambda entry: sum(entry.manifest.key.get(name) != value for name, value in wanted.items()),
            default=None,
        )

    def _folders(self, source: ModelSource, neighbours: Iterable[Path]) -> Iterator[FolderSource]:
        return folders.near(source, neighbours, self.private)

    # Listing ------------------------------------------------------------------------------------------------

    def entries(self) -> Iterator[Entry]:
        """Iterate over the readable entries of the home."""
        return _readable(self.private.entry_folders())

    def saved(self, folder: Path) -> Iterator[Entry]:
        """Iterate over the readable copies in the `.graphs` folders of a folder, such as `save` makes."""
        return _readable(layout.copies_in(folder))

    def check_all(self, roots: Iterable[Path] = ()) -> Iterator[tuple[Path, CheckResult]]:
        """Check the signature and files of every entry of the home, and of the copies beside checkpoints in folders."""
        for folder in itertools.chain(self.private.entry_folders(), *map(layout.copies_in, roots)):
            yield folder, self.check(folder)

    def check(self, folder: Path) -> CheckResult:
        """Check the signature and files of an entry. Changes nothing."""
        verdict = read_trusted(folder, self.signer)
        if isinstance(verdict, TrustedEntry):
            return check(verdict.entry)
        return verdict.reason if isinstance(verdict, FaultyEntry) else verdict

    # Changing -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Return an empty folder of the home for a compile; gone when the block ends.

        Raises:
            OSError: there is no such folder, it has no room, or the graph could not be signed.
        """
        self.signer.key()  # before anything is compiled in vain
        with self.private.staging() as folder:
            yield folder

    def sweep(self) -> None:
        """Remove what dead processes left behind. Never raises OSError."""
        self.private.sweep()

    def sweep_beside(self, source: ModelSource) -> None:
        """Remove copies beside a model's checkpoint that dead processes left unfinished. Never raises OSError."""
        beside = layout.beside(source)
        if beside is not None:
            copies.sweep(beside)

    def publish(self, key: GraphKey, compiled: Path, new: NewEntry) -> Entry:
        """Make the files in a folder from `staging` an entry.

        Returns:
            The new entry; or the same graph where another process published it meanwhile.

        Raises:
            NotPublishedError: it cannot be written, or look-ups would refuse it.
        """
        try:
            manifest, text = manifest_of(key, compiled, new)
            signatures = {SIGNATURE_FILE: self.signer.sign(text).model_dump_json(indent=1)}
            with self.private.staging() as folder:
                for name in manifest.files:
                    (compiled / name).replace(folder / name)
                return self.private.keep(SignedGraph(key, manifest, text, signatures), folder)
        except OSError as error:
            raise NotPublishedError(error, self.graphs) from error

    def keep_beside(self, entry: Entry, source: ModelSource) -> None:
        """Write a copy of an entry beside the model's checkpoint. Never raises OSError.

        Where the user's graph folder cannot be the home, one goes there, too: the home may be gone at the next start.
        """
        beside = layout.beside(source)
        if beside is not None and source.path is not None and source.path.is_file() and self._write(entry, beside):
            self.notes.note_folders([source.path.parent])
        if self.private.is_elsewhere:
            self._write(entry, self.home / GRAPHS_FOLDER)

    def _write(self, entry: Entry, location: Path) -> bool:
        try:
            return isinstance(copies.write_copy(entry, location, self.signer), Path)
        except OSError as error:
            log.debug("no copy of %s in %s: %s", entry.folder.name, location, error)
            return False

    def save(self, entry: Entry, location: Path) -> Path:
        """Copy an entry into a folder of graphs, `<name>.graphs/<model>`, which look-ups beside it then search.

        Raises:
            OSError: it cannot be read or written.
        """
        written = copies.write_copy(entry, location, self.signer)
        if isinstance(written, Reason):
            raise OSError(written.text)
        return written or location / str(entry.manifest.key["component"]) / entry.folder.name

    def quarantine(self, wrong: Broken) -> bool:
        """Move an entry of the home aside, so that nobody loads it again. Never raises OSError.

        Returns:
            Whether it is out of the way, perhaps by another process that has published another one there since.
        """
        if _is_another(wrong):
            return True
        if not self.private.quarantine(wrong.folder):
            return False
        self.markers.clear_loading(wrong.folder)
        self.disk.changed()
        return True

    # Use ----------------------------------------------------------------------------------------------------

    def lease(self, entry: Entry) -> Lease | reasons.GraphRemoved:
        """Keep an entry from being removed as long as this process has it loaded; or tell that it is gone."""
        return leases.take(entry.folder)

    def note_use(self, entry: Entry, how: Literal["compiled", "restored"], source: ModelSource) -> None:
        """Record that this process loaded an entry, by which the least recently used ones are known."""
        marks.note_use(entry.folder, how, source)
        self.disk.changed()

    # First use ----------------------------------------------------------------------------------------------

    def first_use(self, entry: Entry) -> FirstUse:
        """Read what the first use on this machine showed; an empty result where there was none."""
        return first_use_results.read_here(entry.folder)

    def remember(self, entry: Entry, result: FirstUse) -> None:
        """Record the first-use result of this machine. Never raises OSError."""
        first_use_results.remember(entry, result)


def _with_versions(differs: Differs) -> Differs:
    """Refuse graphs of newer versions, too, before anything else that speaks against them."""
    return lambda manifest: manifest.needs_newer or differs(manifest)


def _readable(folders: Iterable[Path]) -> Iterator[Entry]:
    return (entry for entry in map(read, folders) if isinstance(entry, Entry))


def _is_another(wrong: Broken) -> bool:
    """Whether a folder holds another entry by now than the one that was found wrong, or the same one whole."""
    now = read(wrong.folder)
    if isinstance(now, reasons.UnreadableNow):
        return True
    if not isinstance(now, Entry):
        return False
    return now.text != wrong.text or (isinstance(wrong.reason, reasons.Damaged) and isinstance(check(now), Sound))
