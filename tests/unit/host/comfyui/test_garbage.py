"""While a thread of ours works, no cycle is collected; afterwards all is as it was."""

from __future__ import annotations

import gc
import threading

from onegraph.host.comfyui.garbage import no_collection


def test_collection_is_back_after_the_last_of_many_threads() -> None:
    def work() -> None:
        for _ in range(200):
            try:
                with no_collection():
                    assert not gc.isenabled()
                    raise KeyError
            except KeyError:
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gc.isenabled()


def test_whoever_has_turned_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
