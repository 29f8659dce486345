"""New processes of a user, as far as this one can be one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onegraph.runtime.obtain.registry import Registry


@contextlib.contextmanager
def new_process(home: Path) -> Iterator[Registry]:
    """While this lasts, all is as in a new process of the user whose graph folder this is: nothing is loaded.

    Small models gain little and machines are noisy: every graph is fast enough.
    """
    from onegraph.graph_cache.store import Store
    from onegraph.runtime.obtain import registry as registry_module
    from onegraph.runtime.obtain.registry import Registry
    from onegraph.runtime.policy import ANY_SPEED

    made = Registry(Store(home), policy=ANY_SPEED)
    with registry_module.using(made):
        yield made
