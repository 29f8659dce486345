"""Why the store has no usable graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .base import Reason


@dataclass(frozen=True)
class NoGraph(Reason):
    """No cached graph of the model has the key; `difference` is how the nearest one's differs, empty without any."""

    code = "no_graph"
    difference: str = ""


@dataclass(frozen=True)
class OtherKey(Reason):
    """The entry in the folder that the key names has another key."""

    code = "other_key"
    difference: str


@dataclass(frozen=True)
class Damaged(Reason):
    """An entry's files are not what its manifest lists; each way has a class of its own."""

    code = "damaged"


@dataclass(frozen=True)
class MissingFile(Damaged):
    """A file is not there."""

    code = "missing_file"
    file: str


@dataclass(frozen=True)
class WrongSize(Damaged):
    """A file was cut short or grew; sizes in bytes."""

    code = "wrong_size"
    file: str
    got: int
    wanted: int


@dataclass(frozen=True)
class DigestDiffers(Damaged):
    """A file of the right size has other contents."""

    code = "digest_differs"
    file: str


@dataclass(frozen=True)
class UnreadableFile(Damaged):
    code = "unreadable_file"
    file: str
    detail: str


@dataclass(frozen=True)
class UnreadableManifest(Damaged):
    code = "unreadable_manifest"
    detail: str


@dataclass(frozen=True)
class TooLarge(Damaged):
    """A file is larger than any of its kind; sizes in bytes."""

    code = "file_too_large"
    file: str
    size: int
    most: int


@dataclass(frozen=True)
class NotARegularFile(Damaged):
    """A link, a pipe, a device or a folder is in a file's place."""

    code = "not_a_regular_file"
    file: str


@dataclass(frozen=True)
class EmptyEntry(Damaged):
    """The manifest lists no file."""

    code = "empty_entry"


@dataclass(frozen=True)
class BadFileName(Damaged):
    """The manifest lists a name that is too long or leads elsewhere; `file` is its beginning."""

    code = "bad_file_name"
    file: str


@dataclass(frozen=True)
class ForeignFile(Damaged):
    """The manifest lists a file that its backend does not write."""

    code = "foreign_file"
    file: str


@dataclass(frozen=True)
class UnreadableNow(Reason):
    """An entry's files could not be read for a cause that may pass: no memory, too many open files, a lost disk.

    It tells nothing of the entry, which stays where it is.
    """

    code = "unreadable_now"
    file: str
    detail: str


@dataclass(frozen=True)
class NewerManifest(Reason):
    """An entry's manifest is of a version that this version of the pack does not know; it stays as it is."""

    code = "newer_manifest"
    version: int


@dataclass(frozen=True)
class Untrusted(Reason):
    """An entry is not known to be this user's own; each way has a class of its own. It is never loaded nor touched."""

    code = "untrusted"


@dataclass(frozen=True)
class Unsigned(Untrusted):
    """It has no signature."""

    code = "unsigned"


@dataclass(frozen=True)
class WrongSignature(Untrusted):
    """Another key signed it, or its manifest has changed since."""

    code = "wrong_signature"


@dataclass(frozen=True)
class ForeignOwner(Untrusted):
    """A file or folder of it belongs to another user than this one or root."""

    code = "foreign_owner"
    owner: str


@dataclass(frozen=True)
class WritableByOthers(Untrusted):
    """The group or all users may write a file or folder of it; `path` is its name."""

    code = "writable_by_others"
    path: str


@dataclass(frozen=True)
class SigningKeyRefused(Untrusted):
    """A key of the user is of no use: others may read or write it, another user owns it, it is no key, or not there."""

    code = "signing_key_refused"
    fault: Literal["open", "foreign", "damaged", "missing"]
    file: str = "signing.key"


@dataclass(frozen=True)
class UnknownPublisher(Untrusted):
    """A publisher signed it whom this user does not trust; `key` is the public key, 64 hex digits."""

    code = "unknown_publisher"
    key: str


@dataclass(frozen=True)
class WrongPublisherSignature(Untrusted):
    """It names a publisher whom this user trusts, but the signature is not over this manifest."""

    code = "wrong_publisher_signature"
    publisher: str


@dataclass(frozen=True)
class NeedsCryptography(Untrusted):
    """The package that signs for publishers and checks their signatures is not installed."""

    code = "needs_cryptography"


@dataclass(frozen=True)
class PublisherListRefused(Untrusted):
    """The list of trusted publishers is of no use: others may write it, another user owns it, or it is no list."""

    code = "publisher_list_refused"
    fault: Literal["open", "foreign", "damaged"]


@dataclass(frozen=True)
class DiedWhileLoading(Reason):
    """Two processes of this machine ended, in a row, while they loaded the entry or called it for the first time."""

    code = "died_while_loading"


@dataclass(frozen=True)
class DiedOnceWhileLoading(Reason):
    """One process ended so. That may be bad luck: the graph is tried once more, and only the log tells."""

    code = "died_once_while_loading"


@dataclass(frozen=True)
class DiedInTrial(Reason):
    """After one death, a child process tried the graph and ended too, or the graph computed nothing of use there."""

    code = "died_in_trial"
    detail: str


@dataclass(frozen=True)
class TrialPending(Reason):
    """After one death, the graph could not be tried in a child process yet."""

    code = "trial_pending"
    detail: str = ""
