"""Make support and headless importable, here and in compiling processes that share one cache; mark tests by layer."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import shutil
import signal
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.comfyui.shared_graphs import SharedGraphs

    from onegraph.graph_cache.model_hash import ModelSource
    from onegraph.graph_cache.store import Store

TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS), str(TESTS.parent / "tools")]
# The user's own settings, such as a key for graphs, are neither used nor changed.
os.environ["XDG_CONFIG_HOME"] = str(TESTS.parent / "build" / "test" / f"config-{os.getpid()}")
from headless import warm  # noqa: E402

if os.name == "nt":
    from support.windows.absent import skip_what_is_lacking

    skip_what_is_lacking()

for name, value in warm.SETTINGS.items():
    os.environ.setdefault(name, value)

# Ignored signals are inherited, and nohup ignores this one: tests that send it would wait for processes that live on.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", metavar="N/M", type=share, help="the N-th of M shares of all tests")


def share(text: str) -> tuple[int, int]:
    """Read `N/M`. Raises ValueError."""
    number, shares = map(int, text.split("/"))
    if not 1 <= number <= shares:
        raise ValueError(f"{text} is none of {shares} shares")
    return number, shares


def pytest_report_header() -> str:
    """For which instruction sets graphs are compiled in this run, which differs between machines."""
    if importlib.util.find_spec("torch") is None:
        return "without torch"
    import torch

    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"


def pytest_unconfigure() -> None:
    """Remove the settings that tests made."""
    shutil.rmtree(os.environ["XDG_CONFIG_HOME"], ignore_errors=True)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have collections pass over what was imported: they took a sixth of the processor's time of these tests.

    Not where the pack's threads put a collection off, for which nothing may be frozen (`host/comfyui/garbage.py`).
    """
    if not any(item.path.is_relative_to(TESTS / "host") for item in session.items):
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with the name of its layer, the folder below tests/, and leave out what is of other shares."""
    for item in items:
        item.add_marker(item.path.relative_to(TESTS).parts[0])
    if config.getoption("--share") is not None:
        number, shares = config.getoption("--share")
        own = [zlib.crc32(item.nodeid.encode()) % shares == number - 1 for item in items]
        config.hook.pytest_deselected(items=[item for item, is_own in zip(items, own, strict=True) if not is_own])
        items[:] = itertools.compress(items, own)


@pytest.fixture(scope="session")
def shared_graphs(tmp_path_factory: pytest.TempPathFactory) -> SharedGraphs:
    """Graphs of ComfyUI's small models that all layers of a run share."""
    from support.comfyui.shared_graphs import shared_by_layers

    return shared_by_layers(lambda: tmp_path_factory.mktemp("shared"))


@pytest.fixture
def inference() -> Iterator[None]:
    """As ComfyUI loads and runs models."""
    import torch

    with torch.inference_mode():
        yield


@pytest.fixture
def no_grad() -> Iterator[None]:
    import torch

    with torch.no_grad():
        yield


@pytest.fixture
def source() -> ModelSource:
    """A model without a file."""
    from onegraph.graph_cache.model_hash import ModelSource

    return ModelSource(None, "0123456789ab")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A user's home."""
    from onegraph.graph_cache.store import Store

    return Store(tmp_path / "home")
