"""`onegraph export`, `import --trust` and `trust`, as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.store.command import onegraph
from support.store.entries import key, publish, snapshot
from support.windows.absent import needs_posix
from typer.testing import Result

from onegraph.cli.output import NO_GRAPHS
from onegraph.cli.sharing import NOBODY
from onegraph.graph_cache.lookup import Hit
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust.publishers import Publishers
from onegraph.graph_cache.trust.signing import Trusted

KEY = 64 * "a"


@pytest.fixture
def alice(tmp_path: Path) -> Store:
    """Who publishes."""
    return Store(tmp_path / "alice")


def lines(done: Result) -> list[str]:
    return done.stdout.splitlines()


def public_key(done: Result) -> str:
    """The key in what an export printed."""
    (found,) = re.findall(r"onegraph trust add \S+ ([0-9a-f]{64})$", done.stdout, re.MULTILINE)
    return str(found)


@pytest.mark.parametrize("target", ["for-bob.tar", "for-bob"])
def test_a_graph_goes_from_one_user_to_another(target: str, alice: Store, bob: Store, tmp_path: Path) -> None:
    entry = publish(alice, ModelSource(None, "aaaaaaaaaaaa"))
    done = onegraph(alice, "export", "--to", tmp_path / target)
    public = public_key(done)
    assert done.exit_code == 0
    assert lines(done) == [
        f"exported  {entry.folder}",
        f"Others trust these graphs after: onegraph trust add NAME {public}",
        f"1 graph exported to {tmp_path / target}",
    ]
    assert onegraph(alice, "trust", "show").stdout == f"{public}\n"
    assert onegraph(bob, "trust", "add", "alice", public).stdout == "alice is trusted\n"
    done = onegraph(bob, "import", "--trust", "alice", tmp_path / target)
    folder = bob.home / entry.folder.relative_to(alice.home)
    assert (done.exit_code, lines(done)) == (0, [f"imported  {folder}", "1 graph imported"])
    found = bob.lookup(key(), ModelSource(None, "bbbbbbbbbbbb"))
    assert isinstance(found, Hit)
    assert bob.signer.provenance(found.entry) == Trusted()
    done = onegraph(bob, "import", "--trust", "alice", tmp_path / target)
    assert lines(done) == [f"there already  {folder}", "0 graphs imported"]
    assert onegraph(bob, "verify").stdout == f"sound  {folder}\n"


def test_export_takes_what_it_is_told(alice: Store, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "photo.safetensors").touch()
    publish(alice, ModelSource(tmp_path / "models" / "photo.safetensors", "aaaaaaaaaaaa"))
    beside = next(alice.saved(tmp_path / "models"))
    at_home = publish(alice, ModelSource(None, "bbbbbbbbbbbb"), key(dtype="float16"))
    done = onegraph(alice, "export", tmp_path / "models", "--to", tmp_path / "x.tar")
    assert lines(done)[0] == f"exported  {beside.folder}" and lines(done)[-1].startswith("1 graph exported")
    done = onegraph(alice, "export", at_home.folder, beside.folder.parent, "--to", tmp_path / "y.tar")
    assert lines(done)[:2] == [f"exported  {at_home.folder}", f"exported  {beside.folder}"]


def test_export_tells_what_it_leaves_out(alice: Store, tmp_path: Path) -> None:
    damaged = publish(alice, ModelSource(None, "aaaaaaaaaaaa")).folder
    (damaged / "graph.aoti").write_bytes(b"")
    unsigned = publish(alice, ModelSource(None, "bbbbbbbbbbbb"), key(dtype="float64")).folder
    (unsigned / "signature.json").unlink()
    done = onegraph(alice, "export", "--to", tmp_path / "x.tar")
    assert (done.exit_code, (tmp_path / "x.tar").exists()) == (1, False)
    assert lines(done) == [
        f"left out, damaged: its file graph.aoti has 0 bytes instead of 4  {damaged}",
        f"left out, not trusted: the cached graph has no signature  {unsigned}",
    ]
    assert done.stderr == "Error: None of 2 graphs can be exported. See above why.\n"


def test_an_export_of_nothing_makes_nothing(alice: Store, tmp_path: Path) -> None:
    done = onegraph(alice, "export", "--to", tmp_path / "x.tar")
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", f"Error: {NO_GRAPHS}\n")
    assert list(tmp_path.iterdir()) == []


def test_export_replaces_no_file(alice: Store, tmp_path: Path) -> None:
    publish(alice, ModelSource(None, "aaaaaaaaaaaa"))
    for name in ("x.tar", "x"):
        (tmp_path / name).write_text("mine")
        done = onegraph(alice, "export", "--to", tmp_path / name)
        assert done.exit_code == 1
        assert done.stderr == f"Error: {name} exists already; choose another name, or remove it first\n"
        assert (tmp_path / name).read_text() == "mine"
    assert not (alice.home / "publisher.key").exists()


def test_each_publishers_name_has_a_key(alice: Store, tmp_path: Path) -> None:
    publish(alice, ModelSource(None, "aaaaaaaaaaaa"))
    first = public_key(onegraph(alice, "export", "--to", tmp_path / "x.tar"))
    done = onegraph(alice, "export", "--to", tmp_path / "y.tar", "--publisher", "ci")
    assert f"onegraph trust add ci {public_key(done)}" in done.stdout
    assert public_key(done) != first
    assert onegraph(alice, "trust", "show", "--publisher", "ci").stdout == f"{public_key(done)}\n"
    assert public_key(onegraph(alice, "export", "--to", tmp_path / "z.tar")) == first
    done = onegraph(alice, "trust", "show", "--publisher", "cd")
    sentence = "Error: there is no publisher's key yet; the first `onegraph export` makes it\n"
    assert (done.exit_code, done.stderr) == (1, sentence)
    assert onegraph(alice, "export", "--to", tmp_path / "a.tar", "--publisher", "../x").exit_code == 1


@needs_posix("Windows' files have no modes")
def test_a_private_key_that_others_may_read(alice: Store, tmp_path: Path) -> None:
    publish(alice, ModelSource(None, "aaaaaaaaaaaa"))
    onegraph(alice, "export", "--to", tmp_path / "x.tar")
    (alice.home / "publisher.key").chmod(0o644)
    refusal = "publisher.key, which graphs are signed with, is refused: other users may read or write it; "
    done = onegraph(alice, "export", "--to", tmp_path / "y.tar")
    assert (done.exit_code, refusal in done.stderr, (tmp_path / "y.tar").exists()) == (1, True, False)
    done = onegraph(alice, "trust", "show")
    assert (done.exit_code, refusal in done.stderr) == (1, True)


def test_trust_is_listed_and_taken_back(bob: Store) -> None:
    assert onegraph(bob, "trust", "list").stdout == f"{NOBODY}\n"
    onegraph(bob, "trust", "add", "alice", KEY.upper())
    onegraph(bob, "trust", "add", "zoe", 64 * "b")
    assert lines(onegraph(bob, "trust", "list")) == [f"{KEY}  alice", f"{64 * 'b'}  zoe", "2 publishers trusted"]
    done = onegraph(bob, "trust", "add", "alice", 64 * "c")
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: alice is trusted with another key already; `onegraph trust remove alice` first if that is meant\n",
    )
    assert onegraph(bob, "trust", "remove", "alice").stdout == "alice is trusted no longer\n"
    assert onegraph(bob, "trust", "remove", "alice").exit_code == 1
    assert Publishers(bob.home).trusted() == {"zoe": 64 * "b"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("add", "a b", KEY), "'a b' is no name for a publisher: "),
        (("add", "alice", "secret"), "a public key has 64 hex digits, "),
        (("remove", "alice"), "no publisher is trusted by the name alice; "),
    ],
)
def test_trust_refuses_in_one_sentence(arguments: tuple[str, ...], sentence: str, bob: Store) -> None:
    done = onegraph(bob, "trust", *arguments)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: {sentence}") and done.stderr.count("\n") == 1
    assert not bob.home.exists()


@needs_posix("Windows' files have no modes")
def test_a_list_that_all_may_write(bob: Store) -> None:
    onegraph(bob, "trust", "add", "alice", KEY)
    (bob.home / "trusted-publishers.json").chmod(0o666)
    for arguments in (("list",), ("add", "zoe", KEY), ("remove", "alice")):
        done = onegraph(bob, "trust", *arguments)
        assert done.exit_code == 1
        assert done.stderr.startswith(
            "Error: trusted-publishers.json in the graph folder is refused: other users may write"
        )


def test_import_refuses_in_one_sentence(alice: Store, bob: Store, tmp_path: Path) -> None:
    entry = publish(alice, ModelSource(None, "aaaaaaaaaaaa"))
    public = public_key(onegraph(alice, "export", "--to", tmp_path / "x"))
    (tmp_path / "x" / "unknown" / "unet" / entry.folder.name / "graph.aoti").write_bytes(b"evil")
    onegraph(bob, "trust", "add", "alice", public)
    before = snapshot(bob.home)
    for publisher, path, sentence in (
        ("eve", "x", "no publisher is trusted by the name eve; `onegraph trust add` with the public key says who that "
         "is"),
        ("alice", "alice", "this is nothing that `onegraph export` made (no bundle.json)"),
        (
            "alice", "x",
            f"the bundle is refused, because of its graph {entry.folder.name!r}: the contents of its file graph.aoti "
            "have changed",
        ),
    ):  # fmt: skip
        done = onegraph(bob, "import", "--trust", publisher, tmp_path / path)
        assert (done.exit_code, done.stdout, done.stderr) == (1, "", f"Error: {sentence}\n")
    made = {str(bob.home / name) for name in ("signing.key", "graphs", ".staging")}
    assert snapshot(bob.home).keys() - before.keys() <= made
    assert list(bob.entries()) == []


@pytest.mark.parametrize("arguments", [(), ("x.tar",), ("--mine",), ("--trust", "alice")])
def test_import_needs_to_be_told_what(arguments: tuple[str, ...], bob: Store) -> None:
    assert onegraph(bob, "import", *arguments).exit_code == 2


def test_ls_names_the_publisher(alice: Store, bob: Store, tmp_path: Path) -> None:
    publish(alice, ModelSource(None, "aaaaaaaaaaaa"))
    public = public_key(onegraph(alice, "export", "--to", tmp_path / "models" / "fleet.graphs"))
    assert "unknown publisher" in onegraph(bob, "ls", tmp_path / "models").stdout
    onegraph(bob, "trust", "add", "fleet", public)
    assert "from fleet" in onegraph(bob, "ls", tmp_path / "models").stdout
    assert onegraph(bob, "verify", tmp_path / "models").exit_code == 0


def test_without_the_package(alice: Store, bob: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(alice, ModelSource(None, "aaaaaaaaaaaa"))
    public = public_key(onegraph(alice, "export", "--to", tmp_path / "x.tar"))
    assert onegraph(bob, "trust", "add", "alice", public).exit_code == 0
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    (alice.home / "publisher.key").unlink()
    before = snapshot(bob.home)
    sentence = (
        "Error: signatures of publishers need the package cryptography, which `pip install cryptography` installs\n"
    )
    for store, arguments in (
        (alice, ("export", "--to", tmp_path / "y.tar")),
        (bob, ("import", "--trust", "alice", tmp_path / "x.tar")),
    ):
        done = onegraph(store, *arguments)
        assert (done.exit_code, done.stderr) == (1, sentence)
    assert snapshot(bob.home) == before
    assert not (alice.home / "publisher.key").exists() and not (tmp_path / "y.tar").exists()


def test_other_commands_need_no_package(alice: Store) -> None:
    """Nor does a look-up in a store without publishers; and none of these imports torch."""
    entry = publish(alice, ModelSource(None, "aaaaaaaaaaaa"))
    script = (
        "import sys; from onegraph.cli.app import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit: print(sorted({'cryptography', 'torch'} & set(sys.modules)))"
    )
    for command in (["trust", "list"], ["ls"], ["trust", "add", "x", KEY]):
        done = subprocess.run(
            [sys.executable, "-c", script, *command], capture_output=True, text=True, check=True,
            env={**os.environ, "ONEGRAPH_HOME": str(alice.home)},
        )  # fmt: skip
        assert done.stdout.splitlines()[-1] == "[]", command
    assert entry.folder.exists()
