"""Python's collection of cycles, kept out of this package's threads.

Cycles are collected by whichever thread allocates. A ComfyUI model that is collected is first gone for its entry in
the host's list of loaded models, and a moment later the entry goes. The host reads that list in the thread that
samples, and raises on an entry without a model. Alone it collects in that thread as a rule, where nothing comes in
between.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_pauses = 0  # under way
_was_enabled = True


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Collect no cycles for a moment, in any thread."""
    global _pauses, _was_enabled
    with _lock:
        if not _pauses:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses and _was_enabled:
                if not gc.get_freeze_count():
                    # Both together begin counting anew, or this thread's next allocation would collect at once.
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()
