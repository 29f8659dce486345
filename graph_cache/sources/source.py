"""What a source is, and how a graph of one is verified before it is parsed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pydantic import ValidationError

from ...common import reasons
from ...common.errors import in_brief
from ...common.reasons import Reason
from ..entry import Entry
from ..file_names import check_names
from ..home import Home, SignedGraph
from ..key import GraphKey
from ..layout import key_of
from ..lookup import Differs
from ..manifest import Manifest
from ..trust import publishers
from ..trust.publishers import PUBLISHER_FILE, Published, PublisherSignature
from .records import Publisher, RemoteGraph


@dataclass(frozen=True)
class Wanted:
    """What is looked for.

    Attributes:
        digest: of the key, as remote stores name it.
        key: None: whatever key has the digest.
        differs: why a graph of the key cannot be used here all the same, or None.
        condemned: entries that were quarantined here for what they did.
    """

    digest: str
    key: GraphKey | None
    differs: Differs
    condemned: list[Entry]


@dataclass(frozen=True)
class Taken:
    """A graph that is in the home now, and what its remote store's record tells of it."""

    entry: Entry
    graph: RemoteGraph | None = None


class Source(Protocol):
    """A place that has graphs. Others may write it."""

    def take(self, wanted: Wanted, home: Home) -> Taken | Reason | None:
        """Copy a graph to the home, if its signature and its files' digests are right. Never raises.

        Returns:
            Why what it has cannot be used; None: it has no such graph.
        """


@dataclass(frozen=True)
class Transfer:
    """What became of a graph, or of a file of a store, that was to be written somewhere.

    Attributes:
        name: of its folder, or in the store.
        did: in a word.
        bytes: that were moved.
        reason: why it was left out.
    """

    name: str
    did: str
    bytes: int = 0
    reason: Reason | None = None


# Verifying --------------------------------------------------------------------------------------------------------


def verify(text: bytes, signature: PublisherSignature, publisher: Publisher) -> SignedGraph | Reason:
    """Parse a manifest if the publisher signed it. A graph of another key, or of odd names, is nobody's."""
    verdict = publishers.judge(signature, text, {publisher.name: publisher.key})
    return parse(text, signature.model_dump_json(indent=1)) if isinstance(verdict, Published) else verdict


def parse(text: bytes, signature: str = "") -> SignedGraph | reasons.Damaged:
    """Parse a manifest whose names, of files and of its entry, lead nowhere else."""
    try:
        manifest = Manifest.model_validate_json(text)
    except (ValidationError, MemoryError) as error:
        return reasons.UnreadableManifest(in_brief(error))
    key = key_of(manifest)
    if isinstance(key, reasons.Damaged):
        return key
    return check_names(manifest) or SignedGraph(key, manifest, text, {PUBLISHER_FILE: signature} if signature else {})
