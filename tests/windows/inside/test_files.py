"""Files and folders as Windows has them: names, open files, junctions, and pipes of another code page."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.store.entries import NOWHERE, key, new_entry, publish

from onegraph.graph_cache import files
from onegraph.graph_cache.crash import leftovers
from onegraph.graph_cache.manifest import CodeRecord
from onegraph.graph_cache.sources.store_folder import BadNameError, Folder
from onegraph.graph_cache.store import Store


def test_a_name_is_short_where_paths_are(store: Store) -> None:
    label = "batch 1-4, 512-2048 x 512-2048, any context"
    code = CodeRecord(python="3.10", functions={"m:f": ("b", "s")}, references={}, methods={})
    entry = publish(store, NOWHERE, key(dtype="bfloat16"), new=new_entry(label, code))
    assert entry.folder.name.startswith("batch-1-4-512-20-bfloat16-inductor-") and len(entry.folder.name) == 54


def test_a_folder_in_the_place_of_a_file_is_no_file(tmp_path: Path) -> None:
    """Windows says that it is forbidden, as of a file that may be read later."""
    with pytest.raises(files.IrregularFileError) as caught:
        files.open_regular(tmp_path)
    assert not files.is_passing(caught.value)


def test_reading_makes_no_room_for_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert files.read_regular(tmp_path / "a", 1 << 50) == b"abc"  # more than any memory


def test_a_file_is_replaced_once_nobody_reads_it(tmp_path: Path) -> None:
    files.write_synced(tmp_path / "a", "old\n")
    reader = files.open_regular(tmp_path / "a")
    timer = threading.Timer(0.1, reader.close)
    timer.start()
    files.replace_text(tmp_path / "a", "new\n")
    timer.join()
    assert (tmp_path / "a").read_bytes() == b"new\n"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_a_junction_is_no_folder(tmp_path: Path) -> None:
    import _winapi

    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("x")
    (tmp_path / "store").mkdir()
    try:
        _winapi.CreateJunction(str(tmp_path / "outside"), str(tmp_path / "store" / "link"))  # type: ignore[attr-defined]
    except OSError:
        pytest.skip("wine 8 makes no junctions")
    with pytest.raises(BadNameError):
        Folder(str(tmp_path / "store")).info("link/precious")
    leftovers.remove(tmp_path / "store")
    assert (tmp_path / "outside" / "precious").exists()


@pytest.mark.parametrize("options", [(), ("--long",)])
def test_what_a_code_page_lacks_is_printed_all_the_same(options: tuple[str, ...], tmp_path: Path) -> None:
    store = Store(tmp_path / "h\N{RIGHTWARDS ARROW}me")
    publish(store, NOWHERE)
    code = f"import os, sys; os.environ['ONEGRAPH_HOME'] = {str(store.home)!r}; sys.argv[1:] = {['ls', *options]!r}"
    run = f"{code}; from onegraph.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", run], stdin=subprocess.PIPE, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode("cp1252")
    assert "unet" in text and "h\\u2192me" in text and "\r\n1 graph, " in text
