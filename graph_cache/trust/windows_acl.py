"""Who else may read or write a file or folder, by Windows' access lists; elsewhere owners and modes tell.

Asked for keys and private folders alone: on most drives everybody may change nearly everything.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any, Literal

WRITES = 0x2 | 0x4 | 0x40 | 0x10000 | 0x40000 | 0x80000 | 0x40000000 | 0x10000000  # also deleting, the list, the owner
READS = 0x1 | 0x80000000
# SYSTEM, administrators, whoever makes a file, its owner, and Windows' installer: they may do everything anyhow.
_INSTALLER = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"
_TRUSTED = frozenset({"S-1-5-18", "S-1-5-32-544", "S-1-3-0", "S-1-3-4", _INSTALLER})
_EVERYBODY = "S-1-1-0"
_OWN_APP = "S-1-15-2-"  # with more numbers than one: a program of this user's, as Python from the Store is
_NO_LISTS = (1, 50)  # errors: no such function, not supported
_OWNER_AND_LIST, _FILE, _TOKEN_USER, _QUERY = 0x1 | 0x4, 1, 1, 0x8  # what functions are asked for
_ALLOWS, _FOR_WHAT_IS_IN_IT = 0, 0x8  # an entry's kind, and a flag of one that does not count for the folder itself
_byte, _short, _number, _pointer, _ref = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_void_p, ctypes.byref


class _List(ctypes.Structure):
    _fields_ = (("head", _number), ("count", _short), ("rest", _short))


class _Entry(ctypes.Structure):
    _fields_ = (("kind", _byte), ("flags", _byte), ("size", _short), ("mask", _number), ("user", _number))


def who_else(path: Path, rights: int) -> tuple[Literal["foreign", "open"], str] | None:
    """Say who owns a file or folder or has some of these rights, other than this user and the system; or None.

    Returns:
        What is wrong, and the user's or group's SID.

    Raises:
        OSError: nobody can tell.
    """
    security, trusted = _library("advapi32"), _TRUSTED | {_this_user()}
    owner, entries, held, at = _pointer(), _pointer(), _pointer(), _pointer()
    asked = str(path), _FILE, _OWNER_AND_LIST, _ref(owner), None, _ref(entries), None, _ref(held)
    wrong = security.GetNamedSecurityInfoW(*asked)
    if wrong in _NO_LISTS:  # a file system without
        return "open", _EVERYBODY
    if wrong:
        raise OSError(None, "its access list cannot be read", str(path), wrong)
    try:
        if _text(owner) not in trusted:
            return "foreign", _text(owner)
        if not entries.value:  # without a list everybody may do everything
            return "open", _EVERYBODY
        for number in range(_List.from_address(entries.value).count):
            if not security.GetAce(entries, number, _ref(at)) or at.value is None:
                return "open", _EVERYBODY
            entry, user = _Entry.from_address(at.value), _text(_pointer(at.value + _Entry.user.offset))
            counts = entry.kind == _ALLOWS and not entry.flags & _FOR_WHAT_IS_IN_IT and entry.mask & rights
            is_own_app = user.startswith(_OWN_APP) and user.count("-") > 4
            if counts and user not in trusted and not is_own_app:
                return "open", user
        return None
    finally:
        _library("kernel32").LocalFree(held)


@functools.cache
def _this_user() -> str:
    """This user's SID; empty where Windows does not tell."""
    kernel, token, size, room = _library("kernel32"), _pointer(), _number(), ctypes.create_string_buffer(256)
    if not _library("advapi32").OpenProcessToken(kernel.GetCurrentProcess(), _QUERY, _ref(token)):
        return ""
    told = _library("advapi32").GetTokenInformation(token, _TOKEN_USER, room, len(room), _ref(size))
    kernel.CloseHandle(token)
    return _text(_pointer.from_buffer(room)) if told else ""


def _text(user: ctypes.c_void_p) -> str:
    text = ctypes.c_wchar_p()
    if not _library("advapi32").ConvertSidToStringSidW(user, _ref(text)):
        return "nobody known"
    found = text.value or ""
    _library("kernel32").LocalFree(text)
    return found


@functools.cache
def _library(name: Literal["advapi32", "kernel32"]) -> Any:
    library: Any = ctypes.WinDLL(name)  # type: ignore[attr-defined]
    if name == "kernel32":
        library.GetCurrentProcess.restype = _pointer
        library.LocalFree.argtypes = library.CloseHandle.argtypes = (_pointer,)
    else:
        library.GetNamedSecurityInfoW.argtypes = (ctypes.c_wchar_p, ctypes.c_int, _number, *[_pointer] * 5)
        library.ConvertSidToStringSidW.argtypes = (_pointer, _pointer)
        library.GetAce.argtypes = library.OpenProcessToken.argtypes = (_pointer, _number, _pointer)
        library.GetTokenInformation.argtypes = (_pointer, ctypes.c_int, _pointer, _number, _pointer)
    return library
