"""Why the store has no usable graph."""

from __future__ import annotations

from typing import Literal

from ..plain_text import plain
from .base import Reason


class NoGraph(Reason):
    """No cached graph of the model has the key; `difference` is how the nearest one's differs, empty without any."""

    difference: str = ""

    def clause(self) -> str:
        if not self.difference:
            return "no graph is cached for this model yet"
        return f"the graphs cached for this model differ in {self.difference}"


class GraphRemoved(Reason):
    """A graph was found, and removed before this process could load it."""

    sentence = "the cached graph was removed just now, by a command or by a process that needed its room"


class MadeForAnother(Reason):
    """No process of this installation can use the graph, since its code is for another version or system.

    Attributes:
        what: the field of its target: `torch`, `platform`, `machine`; or `format` of the graph.
    """

    sentence = "the graph is for {what} {made_for}, and here is {here}"
    what: str
    made_for: str
    here: str


class CheckpointGone(Reason):
    sentence = "the checkpoint {checkpoint} that the graph was made for is not in its folder any more"
    checkpoint: str


class Quarantined(Reason):
    sentence = "the graph was quarantined, so that nothing loads it"


class OtherKey(Reason):
    sentence = "the graph in its folder differs in {difference}"
    difference: str


class Damaged(Reason):
    """An entry's files are not what its manifest lists; each way has a class of its own."""

    sentence = "its files are not what its manifest lists"

    def clause(self) -> str:
        return f"the cached graph is damaged: {self.damage}"

    @property
    def damage(self) -> str:
        """What is wrong with the entry's files, in a clause that follows "damaged: "."""
        return plain(super().clause())


class MissingFile(Damaged):
    sentence = "its file {file} is missing"
    file: str


class WrongSize(Damaged):
    sentence = "its file {file} has {got} bytes instead of {wanted}"
    file: str
    got: int
    wanted: int


class DigestDiffers(Damaged):
    sentence = "the contents of its file {file} have changed"
    file: str


class UnreadableFile(Damaged):
    sentence = "its file {file} cannot be read ({detail})"
    file: str
    detail: str


class UnreadableManifest(Damaged):
    sentence = "its manifest cannot be read ({detail})"
    detail: str


class TooLarge(Damaged):
    """A file is larger than any of its kind; sizes in bytes."""

    code = "file_too_large"
    sentence = "its file {file} has {size} bytes, more than the {most} that are read"
    file: str
    size: int
    most: int


class NotARegularFile(Damaged):
    """A link, a pipe, a device or a folder is in a file's place."""

    sentence = "its {file} is a link, a pipe or a folder instead of a file"
    file: str


class EmptyEntry(Damaged):
    sentence = "its manifest lists no files"


class BadFileName(Damaged):
    """The manifest lists a name that is too long or leads elsewhere; `file` is its beginning."""

    sentence = "its manifest lists a file name that is not allowed ({file!a})"
    file: str


class ForeignFile(Damaged):
    sentence = "its manifest lists the file {file}, which its backend does not write"
    file: str


class UnreadableNow(Reason):
    """An entry's files could not be read for a cause that may pass: no memory, too many open files, a lost disk.

    It tells nothing of the entry, which stays where it is.
    """

    sentence = "the cached graph's file {file} cannot be read at the moment ({detail})"
    file: str
    detail: str


class NewerManifest(Reason):
    sentence = "the cached graph was made by a newer version of OneGraph (manifest version {version})"
    version: int


class OlderManifest(Reason):
    sentence = "the cached graph was made by an older version of OneGraph (manifest version {version})"
    version: int


class Untrusted(Reason):
    """An entry is not known to be this user's own; each way has a class of its own. It is never loaded nor touched."""

    sentence = "the cached graph is not known to be this user's own"


class Unsigned(Untrusted):
    sentence = "the cached graph has no signature"


class WrongSignature(Untrusted):
    sentence = (
        "the cached graph was signed with a key that is not here any more, or was changed since; keep "
        "ONEGRAPH_HOME between starts, or give each start the same key in ONEGRAPH_SIGNING_KEY"
    )


class ForeignOwner(Reason):
    """A folder that is to be this user's alone, or one on the way to it, is another's."""

    sentence = "the folder where graphs are cached belongs to another user ({owner})"
    owner: str


class WritableByOthers(Reason):
    """The group or all users may write a folder that is to be this user's alone, or one on the way to it."""

    sentence = "other users may write {path}, where graphs are cached"
    path: str


_KEY_FAULTS = {
    "open": "other users may read or write it; close it (`chmod 600`, on Windows `icacls`), or {remedy}",
    "foreign": "it belongs to another user; {remedy}",
    "damaged": "it is no key; {remedy}",
    "missing": "it is not there; mount it, or {remedy}",
}
_OTHER_KEY = "name a key of this user alone in ONEGRAPH_SIGNING_KEY"


class SigningKeyRefused(Untrusted):
    """A key of the user is of no use: others may read or write it, another user owns it, it is no key, or not there."""

    fault: Literal["open", "foreign", "damaged", "missing"]
    file: str = "signing.key"

    def clause(self) -> str:
        remedy = "remove it, and the next export makes another" if self.file.startswith("publisher") else _OTHER_KEY
        fault = _KEY_FAULTS[self.fault].format(remedy=remedy)
        return f"the key {self.file}, which graphs are signed with, is refused: {fault}"


class UnknownPublisher(Untrusted):
    sentence = "the cached graph was signed by a publisher who is not trusted here (key {key:.16}...)"
    key: str


class WrongPublisherSignature(Untrusted):
    sentence = "the cached graph names the trusted publisher {publisher}, but the signature is wrong"
    publisher: str


class NeedsCryptography(Untrusted):
    sentence = "signatures of publishers need the package cryptography, which `pip install cryptography` installs"


_LIST_FAULTS = {
    "open": "other users may write it; take that right away, look through it, and run `onegraph trust add` again",
    "foreign": "it belongs to another user",
    "damaged": "it is no such list; remove it, and trust the publishers anew",
}


class PublisherListRefused(Untrusted):
    """The list of trusted publishers is of no use: others may write it, another user owns it, or it is no list."""

    fault: Literal["open", "foreign", "damaged"]

    def clause(self) -> str:
        return f"trusted-publishers.json in the graph folder is refused: {_LIST_FAULTS[self.fault]}"


class DiedWhileLoading(Reason):
    """Two processes of this machine ended, in a row, while they loaded the entry or called it for the first time."""

    sentence = "the cached graph was quarantined, because the process that loaded it last died meanwhile"


class DiedOnceWhileLoading(Reason):
    """One process ended so. That may be bad luck: the graph is tried once more, and only the log tells."""

    sentence = "the process that loaded the cached graph last died meanwhile; it is tried once more"


class DiedInTrial(Reason):
    """After one death, a child process tried the graph and ended too, or the graph computed nothing of use there."""

    sentence = "the cached graph was quarantined, because it failed in a child process, too ({detail})"
    detail: str


class TrialPending(Reason):
    """After one death, the graph could not be tried in a child process yet."""

    sentence = (
        "the process that loaded the cached graph last died meanwhile, and no child process could try it yet{detail:()}"
    )
    detail: str = ""
