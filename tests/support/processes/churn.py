"""Processes that publish and look up many keys at once, with entries of a few bytes."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections import Counter
from multiprocessing.connection import Connection

from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.key import GraphKey
from onegraph.graph_cache.lookup import Broken, Hit
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources.source import Taken
from support.processes.lives import Case, context
from support.store import entries

KEYS = 30


def key(number: int) -> GraphKey:
    return entries.key(architecture=f"{number:02d}")


def content(number: int) -> bytes:
    return f"code of {number}".encode() * 1000


def sources(case: Case) -> list[ModelSource]:
    """Two checkpoints whose graphs serve each other."""
    return [ModelSource(case.models / f"{name}.safetensors", 12 * digit) for name, digit in (("a", "a"), ("b", "b"))]


class Churn:
    """A process that does at random what servers do with a store, for some seconds.

    Args:
        harm: whether it also damages files now and then, and quarantines what look-ups find broken.
    """

    def __init__(self, case: Case, seed: int, seconds: float, *, harm: bool) -> None:
        self._messages, theirs = context().Pipe(duplex=False)
        arguments = (case, seed, seconds, harm, theirs)
        self.process = context().Process(target=_live, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def kill(self, sign: int) -> None:
        """Send a signal and wait for the end; it may have come to its end by itself before."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, sign)
        self.process.join()

    def end(self) -> tuple[list[str], Counter[str]]:
        """What went wrong, and how often it did what."""
        told: tuple[list[str], Counter[str]] = self._messages.recv()
        self.process.join()
        return told


def wrong(case: Case, number: int, source: ModelSource, *, known: bool) -> str:
    """Look one key up as a server does; what is wrong with what was found, empty if nothing is.

    Args:
        known: whether a sound graph of the key must be there.
    """
    store = case.store
    found = store.find(key(number))
    if isinstance(found, Broken):
        store.quarantine(found)
    taken = None if isinstance(found, Hit) else store.take(key(number), source, [case.models])
    if not isinstance(found, Hit) and not isinstance(taken, Taken):
        return f"{number} is lost: {found}, {taken}" if known else ""
    entry = taken.entry if isinstance(taken, Taken) else found.entry  # type: ignore[union-attr]
    try:
        with store.markers.loading(entry.folder):
            loaded = (entry.folder / "graph.aoti").read_bytes()
    except OSError as error:
        return f"{number} cannot be loaded: {error}" if known else ""
    store.markers.clear_loading(entry.folder)
    return "" if loaded == content(number) else f"{number} gave {loaded[:20]!r}"


def _live(case: Case, seed: int, seconds: float, harm: bool, connection: Connection) -> None:
    chance, troubles, done = random.Random(seed), list[str](), Counter[str]()
    known: set[tuple[int, ModelSource]] = set()
    until = time.monotonic() + seconds
    while time.monotonic() < until and not troubles:
        number, source = chance.randrange(KEYS), chance.choice(sources(case))
        act = chance.choice(["publish", "lookup", "lookup", "remember", "sweep", *(["harm"] if harm else [])])
        done[act] += 1
        try:
            if act == "publish":
                entries.publish(case.store, source, key(number), content(number))
                if not harm:
                    known.add((number, source))
            elif act == "lookup":
                trouble = wrong(case, number, source, known=(number, source) in known)
                troubles += [trouble] if trouble else []
            elif act == "remember":
                found = case.store.find(key(number))
                if isinstance(found, Hit):
                    case.store.remember(found.entry, FirstUse(checked={"n": float(seed)}))
            elif act == "sweep":
                case.store.sweep()
            else:
                _harm(case, chance)
        except Exception as error:
            troubles.append(f"{act}: {type(error).__name__}: {error}")
    connection.send((troubles, done))
    connection.close()
    os._exit(0)


def _harm(case: Case, chance: random.Random) -> None:
    with contextlib.suppress(OSError):  # somebody was faster
        files = sorted([*case.root.glob("models/*.graphs/*/unet/*/*.*"), *case.root.glob("home/graphs/unet/*/*.*")])
        path = chance.choice(files) if files else case.root / "nothing" / "nothing"
        if chance.random() < 0.2:
            shutil.rmtree(path.parent)
        elif chance.random() < 0.5:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1])
