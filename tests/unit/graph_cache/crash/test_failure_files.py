"""What compiles failed with, in files that may be anything when they are read again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.store.entries import key

from onegraph.graph_cache.crash import failure_files
from onegraph.graph_cache.crash.failure_files import FOLDER, Failure, FailureFiles
from onegraph.graph_cache.store import Store

FAILED = Failure(kind="facts", reason={"code": "compile_failed", "detail": "no"}, facts={"torch": "2.14"})


def file_of(home: Path) -> Path:
    """Where the failures of `key()` are."""
    FailureFiles(home).write(key(), "any size", (FAILED,))
    (path,) = (home / FOLDER).iterdir()
    return path


def test_another_process_reads_them(tmp_path: Path) -> None:
    home = tmp_path / "home"
    Store(home).failures.write(key(), "any size", (FAILED,))
    assert Store(home).failures.read(key()) == (FAILED,)
    assert Store(home).failures.read(key(dtype="float16")) == ()
    Store(home).failures.write(key(), "any size", ())
    assert Store(home).failures.read(key()) == ()
    assert not (home / FOLDER).exists()


def folder(path: Path) -> None:
    path.mkdir()
    (path / "x").touch()


NEGATIVE = {"component": "", "label": "", "failures": [{"kind": "disk", "reason": {}, "free": -1}]}
THERE: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_text('{"version": 1, "component"'),
    "negative": lambda path: path.write_text(json.dumps(NEGATIVE)),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "pipe": lambda path: os.mkfifo(path),
    "folder": folder,
}


@pytest.mark.parametrize("there", THERE)
def test_a_file_that_is_none_counts_as_none(there: str, tmp_path: Path) -> None:
    path = file_of(tmp_path)
    path.unlink()
    THERE[there](path)
    files = FailureFiles(tmp_path)
    assert files.read(key()) == ()
    files.write(key(), "any size", (FAILED,))
    assert files.read(key()) == (FAILED,)  # on the disk, or in this process where a folder is in its place
    assert [path.name] == [other.name for other in path.parent.iterdir()]


def test_a_home_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    files = FailureFiles(tmp_path / "home")
    files.write(key(), "any size", (FAILED,))
    assert files.read(key()) == (FAILED,)
    assert FailureFiles(tmp_path / "home").read(key()) == ()
    files.write(key(), "any size", ())
    assert files.read(key()) == ()
    assert [*files.forget()] == []


def test_number_and_size_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_files, "_MOST_FILES", 5)
    files = FailureFiles(tmp_path)
    many = tuple(FAILED.model_copy(update={"free": number}) for number in range(100))
    files.write(key(), "any size", many)
    assert files.read(key()) == many[-16:]
    assert len([*(tmp_path / FOLDER).iterdir()]) == 1
    for number in range(8):
        files.write(key(architecture=str(number)), "any size", (FAILED,))
        os.utime(tmp_path / FOLDER / failure_files._file_name(key(architecture=str(number)).digest), (number, number))
    assert len([*(tmp_path / FOLDER).iterdir()]) == 5
    assert files.read(key(architecture="0")) == () and files.read(key(architecture="7")) == (FAILED,)


def test_forgetting_leaves_what_other_machines_met(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    other = path.with_name("another-" + path.name)
    other.write_bytes(path.read_bytes())
    assert [(found.component, found.label, found.failures) for found in FailureFiles(tmp_path).forget()] == [
        ("unet", "any size", (FAILED,))
    ]
    assert [*path.parent.iterdir()] == [other]
