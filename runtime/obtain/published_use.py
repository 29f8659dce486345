"""First uses on a publisher's machines, which count here only where the site says so.

`ONEGRAPH_TRUST_FIRST_USE` names publishers, separated by commas. A graph fetched from a remote store is then not
compared with eager anew where the publisher's record tells of a first use with the same target, driver, torch and host.
Spot checks of later calls stay.
"""

from __future__ import annotations

import os

from ...common.log import logger
from ...graph_cache.first_use_results import FirstUse
from ...graph_cache.sources.source import Taken
from ...graph_cache.store import Store
from ...graph_cache.trust.signing import Trusted
from ..graphs.first_use import driver_of
from ..request import Request

log = logger("runtime")

VARIABLE = "ONEGRAPH_TRUST_FIRST_USE"


def believe(store: Store, taken: Taken, request: Request) -> bool:
    """Take over what a believed publisher's first use showed on a machine like this one; whether there is such."""
    believed = {name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()}
    if not believed or taken.graph is None or store.first_use(taken.entry).checked:
        return False
    whose = store.signer.provenance(taken.entry)
    if not isinstance(whose, Trusted) or whose.publisher not in believed:
        return False
    here = (request.key.target, driver_of(request.device), request.environment)
    for use in taken.graph.first_uses:
        if (use.target, use.driver, use.environment) == here and use.checked:
            facts = use.model_dump(include={"environment", "driver", "checked", "eager_ms", "compiled_ms", "size"})
            store.remember(taken.entry, FirstUse(**facts))
            log.info("%s: its first use is taken from %s", taken.entry.folder.name, whose.publisher)
            return True
    return False
