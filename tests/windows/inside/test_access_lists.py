"""Who else may write a private folder, a key or the list of publishers, by Windows' own access lists."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from support.store.entries import NOWHERE, key, publish, trust

from onegraph.common import reasons
from onegraph.graph_cache.lookup import Hit, Miss
from onegraph.graph_cache.store import Store
from onegraph.graph_cache.trust import private_folder, windows_acl
from onegraph.graph_cache.trust.publishers import TRUSTED_FILE, Publishers
from onegraph.graph_cache.trust.signing import KEY_FILE

EVERYBODY, SYSTEM = "S-1-1-0", "S-1-5-18"
OWN_APP = "S-1-15-2-3847866527-469524349-687026318-516638107-1125189541-44"  # wine keeps no entry for all programs
ALL, READ, FOR_CHILDREN = "(A;;FA;;;{})", "(A;;FR;;;{})", "(A;OICIIO;FA;;;{})"
BOTH = windows_acl.READS | windows_acl.WRITES
PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


def allow(path: Path, *entries: str) -> None:
    """Give a file or folder a list of these entries, and of this user's own."""
    security: Any = ctypes.WinDLL("advapi32")  # type: ignore[attr-defined]
    describe = security.ConvertStringSecurityDescriptorToSecurityDescriptorW
    pointer, number = ctypes.c_void_p, ctypes.c_uint32
    describe.argtypes = (ctypes.c_wchar_p, number, pointer, pointer)
    security.SetFileSecurityW.argtypes = (ctypes.c_wchar_p, number, pointer)
    text, described = "".join(["D:", ALL.format(windows_acl._this_user()), *entries]), pointer()
    assert describe(text, 1, ctypes.byref(described), None)
    assert security.SetFileSecurityW(str(path), 4, described)  # 4: the list alone


@pytest.mark.parametrize(
    ("entries", "rights", "wrong"),
    [
        ((), BOTH, None),
        ((ALL.format(SYSTEM),), BOTH, None),
        ((ALL.format(OWN_APP),), BOTH, None),
        ((ALL.format(EVERYBODY),), windows_acl.WRITES, ("open", EVERYBODY)),
        ((READ.format(EVERYBODY),), windows_acl.WRITES, None),
        ((READ.format(EVERYBODY),), BOTH, ("open", EVERYBODY)),
    ],
)
def test_who_else_may_use_a_file(entries: tuple[str, ...], rights: int, wrong: object, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    allow(tmp_path / "a", *entries)
    assert windows_acl.who_else(tmp_path / "a", rights) == wrong


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        windows_acl.who_else(tmp_path / "a", BOTH)


def test_a_private_folder_is_closed(tmp_path: Path) -> None:
    private_folder.make(tmp_path / "a")
    assert private_folder.check(tmp_path / "a") is None
    assert private_folder.locate(tmp_path / "a") == tmp_path / "a"
    allow(tmp_path / "a", ALL.format(EVERYBODY))
    assert private_folder.check(tmp_path / "a") == reasons.WritableByOthers("a")
    with pytest.raises(private_folder.RefusedError, match="other users may write a, where graphs are cached"):
        private_folder.make(tmp_path / "a")
    assert private_folder.locate(tmp_path / "a").name.startswith("onegraph-0-")


def test_a_home_that_all_may_write_is_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    allow(tmp_path / "open", ALL.format(EVERYBODY))
    store = Store(tmp_path / "open")
    entry = publish(store, NOWHERE)
    assert store.private.is_elsewhere and not entry.folder.is_relative_to(tmp_path)
    assert store.find(key()) == Hit(entry)


@pytest.mark.parametrize("right", [ALL, READ])
def test_a_key_that_others_may_read(right: str, store: Store) -> None:
    publish(store, NOWHERE)
    allow(store.home / KEY_FILE, right.format(EVERYBODY))
    assert store.find(key()) == Miss(reasons.SigningKeyRefused("open"))


def test_a_list_of_publishers_that_others_may_write(store: Store) -> None:
    trust(store, PUBLIC)
    assert Publishers(store.home).trusted() == {"fleet": PUBLIC}
    allow(store.home / TRUSTED_FILE, ALL.format(EVERYBODY))
    assert Publishers(store.home).trusted() == reasons.PublisherListRefused("open")
