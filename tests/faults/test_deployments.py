"""How real deployments start: none compiles at each start without a word, and none fills a disk with graphs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import deployments
from support.processes.deployments import Deployment, count_entries, give_to_group, mount, read_only, series_elsewhere
from support.store.entries import bake, publish, trust

from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.publish import NewEntry
from onegraph.graph_cache.store import Store

WORKER = 12345  # nobody's number, nor any group's
STARTS = 4
KEPT = "keep ONEGRAPH_HOME between starts, or give each start the same key in ONEGRAPH_SIGNING_KEY"


@pytest.fixture
def root() -> Iterator[Path]:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("only root mounts folders, and becomes another user")
    root = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own folder is closed to others
    root.chmod(0o755)
    deployments.work([root / name for name in ("models", "home", "user", "tmp")])
    (root / "tmp").chmod(0o1777)
    (root / "models" / "photo.safetensors").write_bytes(b"x")
    yield root
    shutil.rmtree(root)


@pytest.fixture
def settings(root: Path) -> dict[str, str]:
    return {"HOME": str(root / "user"), "ONEGRAPH_HOME": str(root / "home")}


@pytest.fixture
def secret(root: Path) -> dict[str, str]:
    (root / "secret").write_text(32 * "5a")
    (root / "secret").chmod(0o444)
    return {"ONEGRAPH_SIGNING_KEY": str(root / "secret")}


def test_a_kept_home(root: Path, settings: dict[str, str]) -> None:
    """As it should be, and as the others are measured by."""
    found = Deployment(root, settings).series(STARTS)
    assert (found.compiles, found.entries) == (1, {"home": 1, "models": 1})
    assert all(start.compiled_calls == 1 for start in found.starts)
    assert found.texts[0].startswith("compiled in 1 s, any size") and "anew" not in found.texts[0]
    assert all(text.startswith("restored") for text in found.texts[1:])


def lose(*folders: Path) -> None:
    for folder in folders:
        mode = folder.stat().st_mode
        shutil.rmtree(folder)
        folder.mkdir()
        folder.chmod(mode)


def test_a_container_without_a_kept_home(root: Path, settings: dict[str, str]) -> None:
    found = Deployment(root, settings, before=lambda number: lose(root / "home", root / "user")).series(STARTS)
    assert (found.compiles, found.entries) == (STARTS, {"home": 1, "models": 2})
    assert KEPT not in found.texts[0]
    assert all(text.startswith("compiled in 1 s") and text.endswith(KEPT) for text in found.texts[1:])


def test_a_container_with_a_secret(root: Path, settings: dict[str, str], secret: dict[str, str]) -> None:
    before = lambda number: lose(root / "home", root / "user")  # noqa: E731
    found = Deployment(root, settings | secret, before=before).series(STARTS)
    assert (found.compiles, found.entries) == (1, {"home": 1, "models": 1})


@pytest.mark.parametrize("beside", [False, True])
def test_a_key_that_goes(beside: bool, root: Path, settings: dict[str, str]) -> None:
    """From a home that is kept, whose graphs are there: of those, the first and the latest stay."""
    before = lambda number: (root / "home" / "signing.key").unlink(missing_ok=True)  # noqa: E731
    found = Deployment(root, settings, before=before, beside=beside).series(STARTS)
    assert (found.compiles, found.entries) == (STARTS, {"home": 2} | ({"models": 2} if beside else {}))
    assert all(text.endswith(KEPT) for text in found.texts[1:])


def test_a_group_that_gets_all_models(root: Path, settings: dict[str, str]) -> None:
    before = lambda number: give_to_group(WORKER, root / "models")  # noqa: E731
    found = Deployment(root, settings, before=before).series(STARTS)
    assert (found.compiles, found.entries) == (1, {"home": 1, "models": 1})
    assert all(text.startswith("restored") for text in found.texts[1:])


def test_a_group_that_gets_the_home_too(root: Path, settings: dict[str, str], secret: dict[str, str]) -> None:
    """Its members could read the key. The next one lies with the user's settings."""

    def before(number: int) -> None:
        give_to_group(WORKER, root / "models", root / "home")

    found = Deployment(root, settings, before=before).series(STARTS)
    assert (found.compiles, found.entries) == (2, {"home": 2, "models": 2})
    assert "signing.key, which graphs are signed with, is refused: other users may read or write it" in found.texts[1]
    assert "`chmod 600`" in found.texts[1]
    lose(root / "models", root / "home", root / "user")
    found = Deployment(root, settings, before=lambda number: (before(number), lose(root / "user"))).series(STARTS)
    assert (found.compiles, found.entries) == (STARTS, {"home": 2})
    assert all("ONEGRAPH_SIGNING_KEY" in text for text in found.texts[1:]), found.texts
    lose(root / "home", root / "user")
    found = Deployment(root, settings | secret, before=before, beside=False).series(STARTS)
    assert (found.compiles, found.entries) == (1, {"home": 1})


@pytest.mark.parametrize("home", ["drive", "drive/home"])
def test_a_home_on_a_drive_that_all_may_write(home: str, root: Path, settings: dict[str, str]) -> None:
    """Graphs are loaded from a folder among the temporary files, which need not be kept."""

    def before(number: int) -> None:
        if number == 0:
            mount("tmpfs", root / "drive", "mode=0777")
        lose(root / "tmp")

    here = settings | {"ONEGRAPH_HOME": str(root / home)}
    found = Deployment(root, here, before=before, beside=False).series(STARTS)
    assert (found.compiles, found.entries) == (1, {"drive": 1, "tmp": 1})
    assert all(start.compiled_calls == 1 for start in found.starts)


def test_a_drive_without_modes(root: Path, settings: dict[str, str], tmp_path: Path) -> None:
    """As Windows' drives in WSL: the key lies with the user's settings, and a copy of each graph where it is wanted."""
    here = settings | deployments.without_modes(root / "home", tmp_path)
    found = series_elsewhere(root, 2, here)
    assert [start.compiles for start in found] == [1, 0], found
    assert [start.compiled_calls for start in found] == [1, 1]
    assert count_entries(root) == {"home": 1, "tmp": 1}
    assert (root / "user" / ".config" / "onegraph" / "signing.key").stat().st_mode & 0o777 == 0o600


def test_a_baked_store_that_all_may_write(root: Path, settings: dict[str, str]) -> None:
    baker = Store(root / "baker")
    new = NewEntry("any size", ("graph.aoti",), (), compile_seconds=1.0, made_by="0.1.0")
    entry = publish(baker, ModelSource(None, "0123456789ab"), deployments.wanted(), new=new)
    public = bake(baker, root / "models" / "photo.graphs", entry)
    shutil.rmtree(root / "baker")
    trust(Store(root / "home"), public)

    def before(number: int) -> None:
        for path in (root / "models", *(root / "models").rglob("*")):
            path.chmod(0o777)

    found = Deployment(root, settings, before=before).series(2)
    assert (found.compiles, [start.compiled_calls for start in found.starts]) == (0, [1, 1]), found


def test_a_user_without_a_home(root: Path) -> None:
    """As `docker run --user`: no key can be kept, so that nothing is compiled."""
    found = Deployment(root, {"HOME": "/"}, uid=WORKER).series(2)
    assert (found.compiles, found.entries) == (0, {})
    assert set(found.texts) == {
        "uncompiled: The graph could not be saved (Permission denied); "
        "set ONEGRAPH_HOME to a folder that this user can write."
    }
    assert Deployment(root, {}, uid=WORKER).series(1).texts == found.texts[:1]


def test_a_user_without_a_home_and_with_a_secret(root: Path, secret: dict[str, str]) -> None:
    os.chown(root / "models", WORKER, WORKER)
    before = lambda number: lose(root / "tmp")  # noqa: E731
    found = Deployment(root, {"HOME": "/", **secret}, before=before, uid=WORKER).series(STARTS)
    assert (found.compiles, found.entries) == (1, {"models": 1, "tmp": 1}), found
    assert [start.compiled_calls for start in found.starts] == STARTS * [1]


def test_read_only_mounts(root: Path, settings: dict[str, str], secret: dict[str, str]) -> None:
    """Without a key nothing is compiled. With one, graphs lie among the temporary files, or come from what is there."""

    def before(number: int) -> None:
        if number == 0:
            read_only(root / "models", root / "home", root / "user")

    found = Deployment(root, settings, before=before).series(2)
    assert (found.compiles, found.entries) == (0, {})
    assert set(found.texts) == {
        "uncompiled: The graph could not be saved (Read-only file system); "
        "set ONEGRAPH_HOME to a folder that this user can write."
    }
    found = Deployment(root, settings | secret, before=before).series(2)
    assert (found.compiles, found.entries) == (1, {"tmp": 1})
    lose(root / "tmp")
    assert Deployment(root, settings).series(1).compiles == 1
    shutil.rmtree(root / "models" / "photo.graphs")
    found = Deployment(root, settings, before=before).series(2)
    assert (found.compiles, found.entries) == (0, {"home": 1, "tmp": 1})
    assert all(start.compiled_calls == 1 for start in found.starts)
