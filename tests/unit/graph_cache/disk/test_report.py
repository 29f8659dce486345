"""What commands and pages tell of graphs, and which one a name means."""

from __future__ import annotations

import pytest
from support.store.entries import NOWHERE, key, publish
from support.store.sized import listed, on_disk
from support.windows.absent import needs_posix

from onegraph.graph_cache.disk import marks
from onegraph.graph_cache.disk.budget import VARIABLE
from onegraph.graph_cache.disk.report import describe, find, state_of, totals
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store


def test_totals(store: Store, three: list[Entry], checkpoint: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1GiB")
    marks.note_use(three[0].folder, "restored", NOWHERE)
    publish(store, checkpoint, key())
    assert checkpoint.path is not None
    sums = totals(store.disk, store.disk.scan([checkpoint.path.parent]))
    assert (sums.graphs, sums.restores, sums.saved_seconds, sums.copies) == (4, 4, 4.0, 1)
    assert sums.bytes == on_disk(store) and sums.budget_bytes == 1 << 30
    assert sums.copies_bytes > 0
    assert sums.states == {"signed": 3, "stale": 1}
    assert [state_of(one) for one in store.disk.entries()].count("signed") == 3


def test_an_entry_is_named_by_id_key_or_model(store: Store, three: list[Entry], tuned: ModelSource) -> None:
    marks.note_use(three[1].folder, "restored", tuned)
    there = store.disk.entries()
    one = listed(store, three[1])
    digest = one.folder.rpartition("-")[2]
    assert find(there, one.id) == find(there, one.id[:6]) == find(there, digest) == [one]
    assert find(there, "unknown") == find(there, "unknown/0123456789ab") == there
    assert find(there, "tuned") == find(there, "tuned/fedcba987654") == [one]  # the second model that it served
    assert find(there, one.id[:2]) == find(there, "") == find(there, "other") == []


@needs_posix("under wine a folder goes although one of its files is open, which Windows refuses")
def test_an_entry_is_described_for_programs(store: Store, three: list[Entry]) -> None:
    lease = store.lease(three[0])
    described = describe(listed(store, three[0]))
    assert (described.restores, described.in_use, described.state, described.reason) == (1, True, "signed", None)
    assert (described.used, described.models) == ("2001-09-09T01:46:40+00:00", ["unknown/0123456789ab"])
    assert str(store.home) not in str(described)
    old = describe(listed(store, publish(store, NOWHERE, key(format=1))))
    assert (old.state, (old.reason or {})["code"]) == ("stale", "made_for_another")
    del lease
