"""Sentences: why the store has no usable graph."""

from __future__ import annotations

import functools

from .. import reasons
from .base import text


@text.register
def _(r: reasons.NoGraph) -> str:
    if not r.difference:
        return "no graph is cached for this model yet"
    return f"the graphs cached for this model differ in {r.difference}"


@text.register
def _(r: reasons.OtherKey) -> str:
    return f"the graph in its folder differs in {r.difference}"


@text.register
def _(r: reasons.Damaged) -> str:
    return f"the cached graph is damaged: {damage(r)}"


@functools.singledispatch
def damage(reason: reasons.Damaged) -> str:
    """Describe what is wrong with an entry's files, in a clause that follows "damaged: ".

    Raises:
        TypeError: no sentence is registered for its class.
    """
    raise TypeError(f"no message for {type(reason).__name__}")


@damage.register
def _(r: reasons.MissingFile) -> str:
    return f"its file {r.file} is missing"


@damage.register
def _(r: reasons.WrongSize) -> str:
    return f"its file {r.file} has {r.got} bytes instead of {r.wanted}"


@damage.register
def _(r: reasons.DigestDiffers) -> str:
    return f"the contents of its file {r.file} have changed"


@damage.register
def _(r: reasons.UnreadableFile) -> str:
    return f"its file {r.file} cannot be read ({r.detail})"


@damage.register
def _(r: reasons.UnreadableManifest) -> str:
    return f"its manifest cannot be read ({r.detail})"


@damage.register
def _(r: reasons.TooLarge) -> str:
    return f"its file {r.file} has {r.size} bytes, more than the {r.most} that are read"


@damage.register
def _(r: reasons.NotARegularFile) -> str:
    return f"its {r.file} is a link, a pipe or a folder instead of a file"


@damage.register
def _(r: reasons.EmptyEntry) -> str:
    return "its manifest lists no files"


@damage.register
def _(r: reasons.BadFileName) -> str:
    return f"its manifest lists a file name that is not allowed ({r.file!a})"


@damage.register
def _(r: reasons.ForeignFile) -> str:
    return f"its manifest lists the file {r.file}, which its backend does not write"


@text.register
def _(r: reasons.UnreadableNow) -> str:
    return f"the cached graph's file {r.file} cannot be read at the moment ({r.detail})"


@text.register
def _(r: reasons.NewerManifest) -> str:
    return f"the cached graph was made by a newer version of OneGraph (manifest version {r.version})"


@text.register
def _(r: reasons.Untrusted) -> str:
    return "the cached graph is not known to be this user's own"


@text.register
def _(r: reasons.Unsigned) -> str:
    return "the cached graph has no signature"


@text.register
def _(r: reasons.WrongSignature) -> str:
    return (
        "the cached graph was signed with a key that is not here any more, or was changed since; keep ONEGRAPH_HOME "
        "between starts, or give each start the same key in ONEGRAPH_SIGNING_KEY"
    )


@text.register
def _(r: reasons.ForeignOwner) -> str:
    return f"the cached graph belongs to another user ({r.owner})"


@text.register
def _(r: reasons.WritableByOthers) -> str:
    return f"other users may write {r.path}, where graphs are cached"


_KEY_FAULTS = {
    "open": "other users may read or write it; close it with `chmod 600`, or {remedy}",
    "foreign": "it belongs to another user; {remedy}",
    "damaged": "it is no key; {remedy}",
    "missing": "it is not there; mount it, or {remedy}",
}
_OTHER_KEY = "name a key of this user alone in ONEGRAPH_SIGNING_KEY"


@text.register
def _(r: reasons.SigningKeyRefused) -> str:
    remedy = "remove it, and the next export makes another" if r.file.startswith("publisher") else _OTHER_KEY
    return f"the key {r.file}, which graphs are signed with, is refused: {_KEY_FAULTS[r.fault].format(remedy=remedy)}"


@text.register
def _(r: reasons.UnknownPublisher) -> str:
    return f"the cached graph was signed by a publisher who is not trusted here (key {r.key[:16]}...)"


@text.register
def _(r: reasons.WrongPublisherSignature) -> str:
    return f"the cached graph names the trusted publisher {r.publisher}, but the signature is wrong"


@text.register
def _(r: reasons.NeedsCryptography) -> str:
    return "signatures of publishers need the package cryptography, which `pip install cryptography` installs"


_LIST_FAULTS = {
    "open": "other users may write it; take that right away, look through it, and run `onegraph trust add` again",
    "foreign": "it belongs to another user",
    "damaged": "it is no such list; remove it, and trust the publishers anew",
}


@text.register
def _(r: reasons.PublisherListRefused) -> str:
    return f"trusted-publishers.json in the graph folder is refused: {_LIST_FAULTS[r.fault]}"


@text.register
def _(r: reasons.DiedWhileLoading) -> str:
    return "the cached graph was quarantined, because the process that loaded it last died meanwhile"


@text.register
def _(r: reasons.DiedOnceWhileLoading) -> str:
    return "the process that loaded the cached graph last died meanwhile; it is tried once more"


@text.register
def _(r: reasons.DiedInTrial) -> str:
    return f"the cached graph was quarantined, because it failed in a child process, too ({r.detail})"


@text.register
def _(r: reasons.TrialPending) -> str:
    why = f" ({r.detail})" if r.detail else ""
    return f"the process that loaded the cached graph last died meanwhile, and no child process could try it yet{why}"
