"""Names that are not UTF-8, or that a terminal would obey: everything works, and nothing is printed raw."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.store.entries import key, publish, quarantine
from support.windows.absent import needs_posix
from typer.testing import CliRunner

from onegraph.cli.app import app
from onegraph.common import reasons
from onegraph.common.plain_text import plain
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.machine_notes import Failure
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.sources.source import Taken
from onegraph.graph_cache.store import Store

pytestmark = needs_posix("Windows takes no control characters in names")
NAME = "ph\udcffto\x1b[31m\n\N{RIGHT-TO-LEFT OVERRIDE}gnp"  # and what turns the writing direction


@pytest.fixture
def odd(tmp_path: Path) -> ModelSource:
    try:
        (tmp_path / NAME).mkdir()
    except OSError:
        pytest.skip("this file system takes only names in UTF-8")
    (tmp_path / NAME / f"{NAME}.safetensors").write_bytes(b"x")
    return ModelSource(tmp_path / NAME / f"{NAME}.safetensors", "0123456789ab")


def test_a_store_of_odd_names_works(odd: ModelSource, tmp_path: Path) -> None:
    store = Store(tmp_path / NAME / "home")
    entries = [publish(store, odd, key(architecture=f"{number:04}")) for number in range(9)]
    entry = entries[0]
    shutil.copytree(entry.folder, entry.folder.with_name(f"{entry.folder.name}-{NAME}"))
    with store.markers.loading(entry.folder):
        assert not store.markers.note_death(entry.folder)
    assert not store.markers.died_while_capturing(entry.folder)
    store.remember(entry, FirstUse(eager_ms=1.0))
    for one in (store, Store(store.home)):
        assert isinstance(one.find(key(architecture="0000")), Hit)
        missed = one.find(key(architecture="0000", dtype="float16"))
        assert missed == Miss(reasons.NoGraph("dtype float32 instead of float16"))
    tuned = ModelSource(odd.path and odd.path.with_name("tuned.safetensors"), "fedcba987654")
    shutil.rmtree(entries[1].folder)
    assert isinstance(store.lookup(key(architecture="0001"), tuned, [tmp_path / NAME]), Hit)
    assert isinstance(store.take(key(architecture="0001"), tuned, [tmp_path / NAME]), Taken)
    store.note_use(entry, "restored", odd)
    assert len(store.disk.scan([tmp_path / NAME])) == 19
    failed = Failure(kind="place", reason={"code": "not_saved"}, where=str(odd.path))
    store.notes.note_failures(key(), "any size", (failed,))
    assert store.notes.failures(key()) == (failed,)
    quarantine(store, entry.folder)
    store.sweep()


@pytest.mark.parametrize(
    "command", [["ls"], ["verify"], ["export", "--to", "x.tar"], ["export", "--to", "\x1b[2J.tar"]]
)
def test_commands_print_nothing_raw(
    command: list[str], odd: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / NAME / "home")
    publish(store, odd)
    (publish(store, odd, key(dtype="float16")).folder / "graph.aoti").write_bytes(b"c0de")
    monkeypatch.setenv("ONEGRAPH_HOME", str(store.home))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*command, str(tmp_path / NAME)])
    assert done.exit_code in (0, 1) and done.output
    assert "ph\\xffto\\x1b[31m\\n\\u202egnp" in done.output or "x1b[2J" in done.output
    assert not [line for line in done.output.splitlines() if plain(line) != line]


def test_sentences_hold_nothing_raw() -> None:
    for reason in (
        reasons.WritableByOthers(NAME), reasons.UnreadableNow(NAME, NAME), reasons.ForeignOwner(NAME),
        reasons.TargetExists(NAME), reasons.UnreadableFile(NAME, NAME),
    ):  # fmt: skip
        assert reason.text == plain(reason.text)
    assert reasons.PublisherNotTrusted("a\x1b[2Jb").text.startswith("no publisher is trusted by the name a\\x1b[2Jb; ")
    assert plain("Größe 512×512, 模型 😀") == "Größe 512×512, 模型 😀"
