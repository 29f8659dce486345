"""Three graphs of some size, in the home alone."""

from __future__ import annotations

import pytest
from support.store.entries import NOWHERE, publish
from support.store.sized import BIG, usable, used

from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.store import Store


@pytest.fixture
def three(store: Store) -> list[Entry]:
    """Graphs that were used one after the other."""
    found = [publish(store, NOWHERE, usable(n), bytes(BIG)) for n in range(3)]
    for number, entry in enumerate(found):
        used(entry, 1e9 + number)
    return found
