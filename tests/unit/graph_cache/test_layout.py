"""Where entries lie, and what their folders are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.store.entries import key, new_entry, publish

from onegraph.graph_cache import layout
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.layout import settings_file, user_folder
from onegraph.graph_cache.manifest import CodeRecord
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store


def test_an_entry_lies_in_the_home_and_a_copy_beside_the_checkpoint(store: Store, entry: Entry, models: Path) -> None:
    name = f"any-size-512-2048-float32-inductor-cpu-f00-{key().digest}"
    assert entry.folder == store.home / "graphs" / "unet" / name
    (copy,) = models.glob("*.graphs/*/*/*")
    assert copy == models / "photo.graphs" / "0123456789ab" / "unet" / name
    assert [one.folder for one in store.entries()] == [entry.folder]
    assert [one.folder for one in store.saved(models)] == [copy]


def test_a_graph_of_a_model_without_a_file_lies_in_the_home_alone(store: Store, models: Path) -> None:
    publish(store, ModelSource(None, "fedcba987654"))
    publish(store, ModelSource(models / "gone.safetensors", "fedcba987654"))
    assert [*store.entries()] and [*models.iterdir()] == []


def test_a_name_ends_in_the_digest_of_the_code(store: Store, checkpoint: ModelSource) -> None:
    code = CodeRecord(python="3.10", functions={"m:f": ("b", "s")}, references={}, methods={})
    entry = publish(store, checkpoint, new=new_entry(code=code))
    assert entry.folder.name.endswith(f"-{key().digest}-{code.digest}")


def test_no_file_has_a_suffix_of_models(store: Store, checkpoint: ModelSource, models: Path) -> None:
    """ComfyUI would list such a file in every menu of checkpoints."""
    publish(store, checkpoint)
    listed = {".ckpt", ".pt", ".pt2", ".bin", ".pth", ".safetensors", ".pkl", ".sft", ".gguf"}
    assert not [p for p in models.glob("*.graphs/**/*") if p.suffix in listed]


def test_the_environment_chooses_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONEGRAPH_HOME", str(tmp_path / "elsewhere"))
    assert user_folder() == Store().home == tmp_path / "elsewhere"
    monkeypatch.delenv("ONEGRAPH_HOME")
    assert user_folder().name == "onegraph"


def test_a_tilde_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell replaces it in a container's settings, and nothing is to be made in a folder of that name."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ONEGRAPH_HOME", "~/graphs")
    assert user_folder() == tmp_path / "graphs"
    monkeypatch.setenv("ONEGRAPH_HOME", "a~b/~")
    assert user_folder() == Path("a~b/~")


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
