"""What this machine has learnt, in a file that nobody may rely on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.store.entries import key

from onegraph.graph_cache import machine_notes
from onegraph.graph_cache.machine_notes import Failure, KeyFailures, MachineNotes, Notes
from onegraph.graph_cache.store import Store

FAILED = Failure(kind="facts", reason={"code": "compile_failed", "detail": "no"}, facts={"torch": "2.14"})


@pytest.fixture
def notes(tmp_path: Path) -> MachineNotes:
    return MachineNotes(lambda: tmp_path / "home")


def test_the_latest_counts_and_other_notes_stay(notes: MachineNotes, tmp_path: Path) -> None:
    assert notes.read() == Notes() and not (tmp_path / "home").exists()
    notes.note_compile("unet", {"starting": 9, "compiling": 90})
    notes.note_compile("decoder", {"starting": 1, "compiling": 9})
    notes.note_compile("unet", {"starting": 3, "compiling": 30})
    notes.note_restores({"a": 0.5, "b": 0.25})
    notes.note_restores({"a": 0.75})
    notes.note_folders([tmp_path / "models", tmp_path / "more"])
    notes.note_folders([tmp_path / "models"])
    assert Store(tmp_path / "home").notes.read() == Notes(
        compile_seconds={"unet": {"starting": 3, "compiling": 30}, "decoder": {"starting": 1, "compiling": 9}},
        restore_seconds={"b": 0.25, "a": 0.75},
        folders=(str(tmp_path / "models"), str(tmp_path / "more")),
    )
    (file,) = (tmp_path / "home").iterdir()
    before = file.stat().st_mtime_ns, file.stat().st_ino
    notes.note_restores({"a": 0.75})  # nothing new is not written
    notes.note_folders([tmp_path / "more"])
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == before


def test_failures_are_known_to_another_process(notes: MachineNotes, tmp_path: Path) -> None:
    later = Store(tmp_path / "home").notes
    notes.note_failures(key(), "any size", (FAILED,))
    assert later.failures(key()) == (FAILED,) and later.failures(key(dtype="float16")) == ()
    later.note_failures(key(), "any size", ())
    assert notes.read() == Notes()
    for dtype in ("float16", "float32"):
        notes.note_failures(key(dtype=dtype), "any size", (FAILED,))
    failed = KeyFailures(component="unet", label="any size", failures=(FAILED,))
    assert later.forget_failures(key(dtype="float16").digest) == [failed]
    assert notes.failures(key(dtype="float16")) == () and notes.failures(key(dtype="float32")) == (FAILED,)
    assert later.forget_failures() == [failed] and notes.forget_failures() == []


def test_failures_are_bounded(notes: MachineNotes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_notes, "_MOST_KEYS", 5)
    many = tuple(FAILED.model_copy(update={"free": number}) for number in range(100))
    notes.note_failures(key(), "any size", many)
    assert notes.failures(key()) == many[-16:]
    for number in range(8):
        notes.note_failures(key(architecture=str(number)), "any size", (FAILED,))
    assert [*notes.read().failures] == [key(architecture=str(number)).digest for number in range(3, 8)]


def test_graphs_restored_longest_ago_are_forgotten(notes: MachineNotes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_notes, "_MOST", 2)
    for seconds, name in enumerate("abacd"):
        notes.note_restores({name: seconds})
    assert notes.read().restore_seconds == {"c": 3, "d": 4}


def test_each_machine_has_its_own(notes: MachineNotes, monkeypatch: pytest.MonkeyPatch) -> None:
    notes.note_restores({"a": 1.0})
    monkeypatch.setattr(machine_notes, "machine_id", lambda: "another")
    assert notes.read() == Notes()


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "3", "[" * 100_000, '{"version": 2}', '{"more": 1}', '{"folders": 3}',
        '{"restore_seconds": {"a": "x"}}', '{"restore_seconds": {"a": -1}}', '{"restore_seconds": {"a": 1e9}}',
        '{"compile_seconds": {"unet": {"compiling": null}}}', '{"failures": {"k": {"component": "", "label": ""}}}',
        '{"failures": {"k": {"component": "", "label": "", "failures": [{"kind": "disk", "reason": {}, "free": -1}]}}}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_as_none(text: str, notes: MachineNotes, tmp_path: Path) -> None:
    notes.note_restores({"a": 1.0})
    (file,) = (tmp_path / "home").iterdir()
    file.write_text(text)
    assert notes.read() == Notes()
    notes.note_restores({"a": 2.0})
    assert notes.read().restore_seconds == {"a": 2.0}


def test_what_cannot_be_read_or_written_is_no_error(notes: MachineNotes, tmp_path: Path) -> None:
    notes.note_restores({"a": 1.0})
    (file,) = (tmp_path / "home").iterdir()
    file.unlink()
    os.mkfifo(file)  # nobody writes there
    assert notes.read() == Notes()
    notes.note_restores({"a": 1.0})
    assert notes.read().restore_seconds == {"a": 1.0}
    notes.note_folders([Path(os.fsdecode(b"/\xff"))])  # JSON has no such name
    assert notes.read().folders == ()
    (tmp_path / "file").write_text("no folder")
    lost = MachineNotes(lambda: tmp_path / "file")
    lost.note_compile("unet", {"compiling": 7.0})
    lost.note_failures(key(), "any size", (FAILED,))
    assert lost.failures(key()) == (FAILED,)  # this process remembers it
    lost.note_failures(key(), "any size", ())
    assert lost.failures(key()) == () and lost.forget_failures() == []
    assert lost.read() == Notes() and (tmp_path / "file").read_text() == "no folder"
