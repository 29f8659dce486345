"""Graphs in a folder `<component>/<entry>/`: beside a checkpoint, in a saved pipeline, in a store that others baked.

Whoever may write such a folder changes nothing but what is found: a signature covers what is taken from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...common.errors import in_brief
from ...common.log import logger
from ...common.reasons import NotSaved, Reason, UnreadableNow
from ..copies import signatures_of
from ..entry import Entry
from ..home import Home, SignedGraph, equals_one
from ..integrity import copy_files
from ..key import GraphKey
from ..layout import COMPILER_CACHE, GRAPHS_FOLDER, beside, listed_now, locations_in, of_digest, visible
from ..lookup import MOST_COMPARED, Differs
from ..model_hash import ModelSource
from ..trust.signing import FaultyEntry, Signer, TrustedEntry, read_trusted
from .source import Taken, Wanted

log = logger("graph_cache")


@dataclass(frozen=True)
class FolderSource:
    """The graphs of one folder, such as `photo.graphs/<model hash>`.

    Attributes:
        signer: whose signatures count.
    """

    folder: Path
    signer: Signer

    def entries(self, component: str) -> Iterator[Entry]:
        """Read a component's entries that may be used. Never raises OSError."""
        for name in sorted(visible(listed_now(self.folder / component)))[:MOST_COMPARED]:
            verdict = read_trusted(self.folder / component / name, self.signer)
            if isinstance(verdict, TrustedEntry):
                yield verdict.entry

    def offers(self, key: GraphKey, differs: Differs, condemned: list[Entry]) -> Iterator[Entry | Reason]:
        """Read the entries of a key, whose files are not looked at; or tell why one cannot be used."""
        component = self.folder / key.component
        for name in visible(of_digest(listed_now(component), key.digest)):
            verdict = read_trusted(component / name, self.signer)
            if isinstance(verdict, UnreadableNow):  # whoever wrote it may keep it so for ever
                continue
            if not isinstance(verdict, TrustedEntry):
                yield verdict.reason if isinstance(verdict, FaultyEntry) else verdict
            elif verdict.entry.manifest.key == key.fields() and not equals_one(verdict.entry.manifest, condemned):
                yield differs(verdict.entry.manifest) or verdict.entry

    def take(self, wanted: Wanted, home: Home) -> Taken | Reason | None:
        """Copy a graph to the home; see `Source`."""
        if wanted.key is None:
            return None
        refused: Reason | None = None
        for offer in self.offers(wanted.key, wanted.differs, wanted.condemned):
            taken = offer if isinstance(offer, Reason) else self._take(offer, wanted.key, home)
            if isinstance(taken, Taken):
                return taken
            refused = refused or taken
        return refused

    def _take(self, entry: Entry, key: GraphKey, home: Home) -> Taken | Reason:
        try:
            with home.staging() as folder:
                wrong = copy_files(entry, folder)
                if wrong is not None:
                    return wrong
                kept = home.keep(SignedGraph(key, entry.manifest, entry.text, signatures_of(entry)), folder)
        except OSError as error:
            return NotSaved(in_brief(error))
        log.info("%s was copied from %s", kept.folder.name, self.folder)
        return Taken(kept)


def near(source: ModelSource, neighbours: Iterable[Path], home: Home) -> Iterator[FolderSource]:
    """Return the folders on this machine that may have a model's graphs: the one beside its checkpoint comes first.

    Args:
        neighbours: folders with checkpoints, besides the model's own.
    """
    nearest = beside(source)
    roots = [*neighbours, *([source.path.parent] if source.path is not None else [])]
    others = (location for root in dict.fromkeys(roots) for location in locations_in(root))
    for location in dict.fromkeys([*([nearest] if nearest is not None else []), *_in_user_folder(home), *others]):
        yield FolderSource(location, home.signer)


def _in_user_folder(home: Home) -> list[Path]:
    """List what may hold graphs in the graph folder besides the home: what others baked, or an older version kept."""
    others = (COMPILER_CACHE,) if home.is_elsewhere else (COMPILER_CACHE, GRAPHS_FOLDER)
    return [home.user / name for name in sorted(visible(listed_now(home.user))) if name not in others]
