"""Where entries lie, and what their folders are called."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.store.entries import NOWHERE, key, new_entry, publish
from support.windows.absent import needs_posix

from onegraph.graph_cache import layout
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.layout import settings_file, user_folder
from onegraph.graph_cache.manifest import CodeRecord
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store


def test_an_entry_lies_in_the_home_and_a_copy_beside_the_checkpoint(store: Store, entry: Entry, models: Path) -> None:
    target = "-512-2048-float32-inductor-cpu-f00" if os.name == "posix" else "-512-204-float32-inductor"
    name = f"any-size{target}-{key().digest}"
    assert entry.folder == store.home / "graphs" / "unet" / name
    (copy,) = models.glob("*.graphs/*/*/*")
    assert copy == models / "photo.graphs" / "0123456789ab" / "unet" / name
    assert [one.folder for one in store.entries()] == [entry.folder]
    assert [one.folder for one in store.saved(models)] == [copy]
    # ComfyUI would list files of these suffixes in every menu of checkpoints.
    of_models = {".ckpt", ".pt", ".pt2", ".bin", ".pth", ".safetensors", ".pkl", ".sft", ".gguf"}
    assert not [path for path in copy.iterdir() if path.suffix in of_models]


def test_a_graph_of_a_model_without_a_file_lies_in_the_home_alone(store: Store, models: Path) -> None:
    for source in (NOWHERE, ModelSource(models / "gone.safetensors", "fedcba987654")):
        publish(store, source)
    assert [*store.entries()] and [*models.iterdir()] == []


def test_a_name_ends_in_the_digest_of_the_code(store: Store) -> None:
    code = CodeRecord(python="3.10", functions={"m:f": ("b", "s")}, references={}, methods={})
    entry = publish(store, NOWHERE, new=new_entry(code=code))
    assert entry.folder.name.endswith(f"-{key().digest}-{code.digest}")


@pytest.mark.parametrize(
    ("chosen", "folder"), [("/x/elsewhere", "/x/elsewhere"), ("~/graphs", "/me/graphs"), ("a~b/~", "a~b/~")]
)
def test_the_environment_chooses_the_folder(chosen: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell replaces a tilde in a container's settings, and nothing is to be made in a folder of that name."""
    monkeypatch.setenv("HOME" if os.name == "posix" else "USERPROFILE", "/me")
    monkeypatch.delenv("ONEGRAPH_HOME", raising=False)
    assert "onegraph" in user_folder().parts[-2:]  # on Windows its folder Cache
    monkeypatch.setenv("ONEGRAPH_HOME", chosen)
    assert user_folder() == Store().home == Path(folder)


@needs_posix("a user of Windows has a profile")
def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has what a container gives such users, and no path is relative to wherever the server was started."""

    def unknown(uid: int) -> object:
        raise KeyError(uid)

    import pwd

    for name in ("HOME", "ONEGRAPH_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert user_folder() == Path("/.cache/onegraph")
    assert settings_file("signing.key") is None
    monkeypatch.setenv("ONEGRAPH_HOME", "~/graphs")
    assert user_folder() == Path("/graphs")


def test_machines_of_one_name_have_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = set()
    for number in ("a", "b", None):
        (tmp_path / "machine-id").write_text(number or "")
        monkeypatch.setattr(layout, "_MACHINE_ID", tmp_path / ("machine-id" if number else "missing"))
        layout.machine_id.cache_clear()
        ids.add(layout.machine_id())
    layout.machine_id.cache_clear()
    assert len(ids) == 3
