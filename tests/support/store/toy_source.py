"""What one more source of graphs costs: this file, and a line that appends it to a store's `sources`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onegraph.common import reasons
from onegraph.common.errors import in_brief
from onegraph.common.reasons import Reason
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.home import Home, SignedGraph, equals_one
from onegraph.graph_cache.integrity import differs
from onegraph.graph_cache.key import key_digest
from onegraph.graph_cache.sources.records import Publisher
from onegraph.graph_cache.sources.source import Taken, Wanted, verify
from onegraph.graph_cache.trust import publishers
from onegraph.graph_cache.trust.publishers import PublisherSignature


@dataclass(frozen=True)
class Held:
    """A graph: its manifest, who signed it, and the bytes of its files."""

    text: bytes
    signature: PublisherSignature
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class MemorySource:
    """Graphs of one publisher in memory, by the digests of their keys."""

    publisher: Publisher
    graphs: dict[str, Held] = field(default_factory=dict)

    def add(self, entry: Entry, private: bytes) -> str:
        """Hold an entry, signed with the publisher's private key; the digest of its key."""
        files = {name: (entry.folder / name).read_bytes() for name in entry.manifest.files}
        digest = key_digest(entry.manifest.key)
        self.graphs[digest] = Held(entry.text, publishers.sign(private, entry.text), files)
        return digest

    def take(self, wanted: Wanted, home: Home) -> Taken | Reason | None:
        held = self.graphs.get(wanted.digest)
        if held is None:
            return None
        graph = verify(held.text, held.signature, self.publisher)
        if isinstance(graph, Reason):
            return graph
        if key_digest(graph.manifest.key) != wanted.digest or equals_one(graph.manifest, wanted.condemned):
            return None
        return wanted.differs(graph.manifest) or self._keep(graph, held, home)

    def _keep(self, graph: SignedGraph, held: Held, home: Home) -> Taken | Reason:
        try:
            with home.staging() as folder:
                for name, record in graph.manifest.files.items():
                    wrong = differs(name, held.files.get(name, b""), record)
                    if wrong is not None:
                        return wrong
                    (folder / name).write_bytes(held.files[name])
                return Taken(home.keep(graph, folder))
        except OSError as error:
            return reasons.NotSaved(in_brief(error))
