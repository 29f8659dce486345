from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from onegraph.common.tensor_meta import TensorMeta
from onegraph.graph_cache.key import FORMAT, GraphKey
from onegraph.graph_cache.manifest import Outcome
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Broken, Damaged, Entry, Hit, Miss, Sound, Store, check

CONSTANTS = (TensorMeta(name="unet.out.bias", shape=(4,), stride=(1,), dtype="float32"),)


def key(**changes: object) -> GraphKey:
    fields = {
        "component": "unet",
        "architecture": "aa",
        "shapes": {"dims": {}},
        "dtype": "float32",
        "backend": "inductor",
        "target": {"device": "cpu", "cpu": "f00", "torch": "2.14"},
    }
    return GraphKey(**fields | changes)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
def checkpoint(tmp_path: Path) -> ModelSource:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "photo.safetensors").write_bytes(b"x")
    return ModelSource(folder / "photo.safetensors", "0123456789ab")


def publish(store: Store, source: ModelSource, wanted: GraphKey | None = None, content: bytes = b"code") -> Entry:
    with store.staging(source) as staging:
        (staging / "graph.aoti").write_bytes(content)
        (staging / "compile.log").write_text("not part of the entry")
        return store.publish(
            wanted or key(),
            source,
            staging,
            label="any size 512-2048",
            files=["graph.aoti"],
            constants=CONSTANTS,
            compile_seconds=1.0,
            made_by="0.1.0",
        )


def test_a_published_graph_is_found_beside_its_checkpoint(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    assert store.find(key(), checkpoint) == Hit(entry)
    assert checkpoint.path is not None
    place = entry.folder.relative_to(checkpoint.path.parent)
    assert place.parts[:3] == ("photo.graphs", "0123456789ab", "unet")
    assert place.name == f"any-size-512-2048-float32-inductor-cpu-f00-{key().digest}"
    assert sorted(p.name for p in entry.folder.iterdir()) == ["graph.aoti", "manifest.json"]


def test_no_graph_file_has_a_suffix_that_comfyui_lists_as_a_model(store: Store, checkpoint: ModelSource) -> None:
    publish(store, checkpoint)
    assert checkpoint.path is not None
    listed = {".ckpt", ".pt", ".pt2", ".bin", ".pth", ".safetensors", ".pkl", ".sft", ".gguf"}
    assert not [p for p in checkpoint.path.parent.glob("*.graphs/**/*") if p.suffix in listed]


def test_staging_leaves_nothing_behind(store: Store, checkpoint: ModelSource) -> None:
    assert checkpoint.path is not None

    def interrupted() -> None:
        with store.staging(checkpoint) as staging:
            (staging / "half").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [p.name for p in checkpoint.path.parent.iterdir()] == ["photo.safetensors"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architecture": "bb"}, "architecture"),
        ({"shapes": {"dims": {"h": [1, 2, 1]}}}, "shapes"),
        ({"dtype": "float16"}, "dtype float32 instead of float16"),
        ({"target": {"device": "cpu", "cpu": "f00", "torch": "2.15"}}, "torch 2.14 instead of 2.15"),
        ({"format": 99}, f"format {FORMAT} instead of 99"),
    ],
)
def test_a_miss_says_what_was_nearest(
    change: dict[str, object], reason: str, store: Store, checkpoint: ModelSource
) -> None:
    publish(store, checkpoint)
    missed = store.find(key(**change), checkpoint)
    assert isinstance(missed, Miss)
    assert reason in missed.reason


def test_an_empty_store_says_so(store: Store, checkpoint: ModelSource) -> None:
    assert store.find(key(), checkpoint) == Miss("no graph is kept for this model yet")


def test_only_the_manifest_decides(store: Store, checkpoint: ModelSource) -> None:
    """A folder renamed to look like another key's is no hit for it."""
    entry = publish(store, checkpoint)
    other = key(architecture="bb")
    entry.folder.rename(entry.folder.with_name(f"renamed-{other.digest}"))
    missed = store.find(other, checkpoint)
    assert isinstance(missed, Miss)
    assert "differs in architecture" in missed.reason


def test_another_checkpoint_of_the_architecture_takes_the_graph_over(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    store.remember(entry, Outcome(checked={"n": 1e-6}))
    assert checkpoint.path is not None
    tuned = ModelSource(checkpoint.path.with_name("tuned.safetensors"), "fedcba987654")
    hit = store.find(key(), tuned)
    assert isinstance(hit, Hit)
    assert hit.adopted_from == "photo.graphs"
    assert "tuned.graphs" in hit.entry.folder.parts
    assert (hit.entry.folder / "graph.aoti").samefile(entry.folder / "graph.aoti")  # a link, no second copy
    assert store.outcome(hit.entry).checked == {"n": 1e-6}
    again = store.find(key(), tuned)
    assert isinstance(again, Hit)
    assert (again.entry.folder, again.adopted_from) == (hit.entry.folder, "")


def test_neighbouring_folders_are_searched(store: Store, checkpoint: ModelSource, tmp_path: Path) -> None:
    publish(store, checkpoint)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = ModelSource(elsewhere / "tuned.safetensors", "fedcba987654")
    assert isinstance(store.find(key(), other), Miss)
    assert checkpoint.path is not None
    assert isinstance(store.find(key(), other, [checkpoint.path.parent]), Hit)


def test_a_read_only_checkpoint_folder_sends_graphs_home(
    store: Store, checkpoint: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checkpoint.path is not None
    beside = checkpoint.path.parent
    real = Path.mkdir

    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        if self.is_relative_to(beside):
            raise PermissionError(30, "Read-only file system", str(self))
        real(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", refuse)  # root may write anywhere, so permissions alone show nothing
    entry = publish(store, checkpoint)
    assert entry.folder.is_relative_to(store.home)
    assert store.find(key(), checkpoint) == Hit(entry)


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "linked"])
def test_damage_is_seen_before_loading(damage: str, store: Store, checkpoint: ModelSource, tmp_path: Path) -> None:
    entry = publish(store, checkpoint)
    file = entry.folder / "graph.aoti"
    if damage == "cut":
        file.write_bytes(b"co")
    elif damage == "changed":
        file.write_bytes(b"c0de")
    else:
        file.unlink()
        if damage == "linked":
            (tmp_path / "evil").write_bytes(b"code")
            file.symlink_to(tmp_path / "evil")
    assert isinstance(check(entry), Damaged)
    assert isinstance(store.find(key(), checkpoint), Broken)
    assert isinstance(store.find(key(), checkpoint), Miss)


def test_a_sound_entry_is_sound(store: Store, checkpoint: ModelSource) -> None:
    assert check(publish(store, checkpoint)) == Sound()


@pytest.mark.parametrize(
    "manifest", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "files": {"../../x": {}}}', "\x00\xff"]
)
def test_a_corrupt_manifest_is_no_hit_and_no_error(manifest: str, store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    (entry.folder / "manifest.json").write_text(manifest)
    assert isinstance(store.find(key(), checkpoint), Broken)


def test_a_file_name_that_leaves_the_entry_is_damage(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    outside = entry.folder.parent / "outside"
    outside.write_bytes(b"code")
    files = {"../outside": entry.manifest.files["graph.aoti"]}
    tampered = Entry(entry.folder, entry.manifest.model_copy(update={"files": files}))
    assert isinstance(check(tampered), Damaged)


def test_two_writers_of_one_graph_leave_one_sound_entry(store: Store, checkpoint: ModelSource) -> None:
    entries: list[Entry] = []
    start = threading.Barrier(4)

    def write(content: bytes) -> None:
        start.wait()
        entries.append(publish(store, checkpoint, content=content))

    threads = [threading.Thread(target=write, args=(f"code {i}".encode(),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({e.folder for e in entries}) == 1
    found = store.find(key(), checkpoint)
    assert isinstance(found, Hit)
    assert len(list(found.entry.folder.parent.iterdir())) == 1


def test_a_broken_entry_in_the_way_is_replaced(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    (entry.folder / "graph.aoti").write_bytes(b"")
    assert check(publish(store, checkpoint)) == Sound()
    assert isinstance(store.find(key(), checkpoint), Hit)


def test_outcomes_are_kept_per_machine(store: Store, checkpoint: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = publish(store, checkpoint)
    store.remember(entry, Outcome(checked={"n": 2e-6}, eager_ms=3.0, compiled_ms=2.0))
    assert store.outcome(entry).speedup == 1.5
    monkeypatch.setattr("onegraph.graph_cache.store.machine_id", lambda: "another")
    assert store.outcome(entry) == Outcome()
    store.remember(entry, Outcome(eager_ms=1.0))
    assert len(store.outcomes(entry).machines) == 2


def test_a_corrupt_outcome_is_measured_again(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    (entry.folder / "outcome.json").write_text("{")
    assert store.outcome(entry) == Outcome()


def test_listing_finds_entries_at_home_and_beside_checkpoints(store: Store, checkpoint: ModelSource) -> None:
    assert checkpoint.path is not None
    beside = publish(store, checkpoint)
    home = publish(store, ModelSource(None, "fedcba987654"), key(architecture="bb"))
    assert [e.folder for e in store.entries([checkpoint.path.parent])] == [home.folder, beside.folder]


def test_an_entry_whose_process_died_while_taking_it_up_is_set_aside(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    with store.loading(entry):
        assert isinstance(store.find(key(), checkpoint), Hit)  # this process is alive and knows what it does

    def die() -> None:
        with store.loading(entry):
            os._exit(1)

    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join()
    found = store.find(key(), checkpoint)
    assert isinstance(found, Broken)
    assert found.reason == "the kept graph was set aside, because the process that took it up last died meanwhile"
    assert not entry.folder.exists()
    assert isinstance(store.find(key(), checkpoint), Miss)


def test_a_marker_goes_when_taking_up_ends_even_by_an_error(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    with pytest.raises(KeyboardInterrupt), store.loading(entry):
        raise KeyboardInterrupt
    assert not [p for p in (store.home / ".loading").rglob("*") if p.is_file()]
    assert isinstance(store.find(key(), checkpoint), Hit)


def test_a_sibling_differs_in_its_shapes_alone(store: Store, checkpoint: ModelSource) -> None:
    publish(store, ModelSource(None, "fedcba987654"), key(shapes={"dims": {"height": 8}}, architecture="bb"))
    assert store.sibling(key(), checkpoint) is None
    other = publish(store, ModelSource(None, "fedcba987654"), key(shapes={"dims": {"height": 8}}))
    assert store.sibling(key(), checkpoint) == other
    own = publish(store, checkpoint, key(shapes={"dims": {"height": 16}}))
    assert store.sibling(key(), checkpoint) == own
    (own.folder / "graph.aoti").write_bytes(b"damaged")
    assert store.sibling(key(), checkpoint) == other


def test_a_strangers_file_among_the_markers_is_no_marker(store: Store, checkpoint: ModelSource) -> None:
    entry = publish(store, checkpoint)
    for kind in (store.loading, store.recording):
        with kind(entry):
            (folder,) = {marker.parent for marker in store.home.glob(".*/*/*") if marker.name == str(os.getpid())}
            (folder / ".DS_Store").touch()
    assert not store.recording_crashed(entry)
    assert isinstance(store.find(key(), checkpoint), Hit)
