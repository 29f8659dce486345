"""Where entries lie, and what their folders are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.store.entries import key, new_entry, publish

from onegraph.graph_cache.layout import settings_file, user_folder
from onegraph.graph_cache.manifest import CodeRecord
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store


def test_an_entry_lies_beside_its_checkpoint(store: Store, checkpoint: ModelSource, models: Path) -> None:
    place = publish(store, checkpoint).folder.relative_to(models)
    assert place.parts[:3] == ("photo.graphs", "0123456789ab", "unet")
    assert place.name == f"any-size-512-2048-float32-inductor-cpu-f00-{key().digest}"


def test_an_entry_of_an_unknown_file_lies_at_home(store: Store) -> None:
    place = publish(store, ModelSource(None, "fedcba987654")).folder.relative_to(store.home)
    assert place.parts[:2] == ("fedcba987654", "unet")


def test_a_name_ends_in_the_digest_of_the_code(store: Store, checkpoint: ModelSource) -> None:
    code = CodeRecord(python="3.10", functions={"m:f": ("b", "s")}, references={}, methods={})
    entry = publish(store, checkpoint, new=new_entry(code=code))
    assert entry.folder.name.endswith(f"-{key().digest}-{code.digest}")


def test_no_file_has_a_suffix_of_models(store: Store, checkpoint: ModelSource, models: Path) -> None:
    """ComfyUI would list such a file in every menu of checkpoints."""
    publish(store, checkpoint)
    listed = {".ckpt", ".pt", ".pt2", ".bin", ".pth", ".safetensors", ".pkl", ".sft", ".gguf"}
    assert not [p for p in models.glob("*.graphs/**/*") if p.suffix in listed]


def test_a_read_only_folder_sends_graphs_home(
    store: Store, checkpoint: ModelSource, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.mkdir

    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        if self.is_relative_to(models):
            raise PermissionError(30, "Read-only file system", str(self))
        real(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", refuse)  # root may write anywhere, so permissions alone show nothing
    entry = publish(store, checkpoint)
    assert entry.folder.is_relative_to(store.home)
    assert list(store.entries()) == [entry]


def test_listing_covers_home_and_checkpoints(store: Store, checkpoint: ModelSource, models: Path) -> None:
    beside = publish(store, checkpoint)
    home = publish(store, ModelSource(None, "fedcba987654"), key(architecture="bb"))
    assert [e.folder for e in store.entries([models])] == [home.folder, beside.folder]


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
