"""Why graphs are not exported or imported, or a publisher is not trusted. Only commands give these."""

from __future__ import annotations

from typing import Literal

from .base import Reason
from .store import Damaged


class BadPublisherName(Reason):
    sentence = "{name!a} is no name for a publisher: letters, digits, dots, dashes and underscores, at most 64"
    name: str


class BadPublisherKey(Reason):
    sentence = "a public key has 64 hex digits, as `onegraph trust show` prints them for the publisher"


class WeakPublisherKey(Reason):
    sentence = "anybody can make signatures for this public key; ask the publisher for the one of `onegraph trust show`"


class OtherPublisherKey(Reason):
    sentence = "{name} is trusted with another key already; `onegraph trust remove {name}` first if that is meant"
    name: str


class PublisherNotTrusted(Reason):
    sentence = "no publisher is trusted by the name {name}; `onegraph trust add` with the public key says who that is"
    name: str


class NoPublisherKey(Reason):
    sentence = "there is no publisher's key yet; the first `onegraph export` makes it"


class TargetExists(Reason):
    sentence = "{name} exists already; choose another name, or remove it first"
    name: str


class NotABundle(Reason):
    sentence = "this is nothing that `onegraph export` made ({detail})"
    detail: str


class BundleEndsEarly(Reason):
    sentence = "the bundle ends early, as after a broken transfer; fetch it once more"


_FOUND = {
    "link": "a link",
    "device": "a device or a pipe",
    "extension": "an extended header, which no export writes",
    "other": "no regular file",
}


class ForbiddenMember(Reason):
    """A bundle holds something else than regular files."""

    name: str
    found: Literal["link", "device", "extension", "other"]

    def clause(self) -> str:
        return f"the bundle is refused, because {self.name!a} in it is {_FOUND[self.found]}"


class BadMemberName(Reason):
    """A bundle holds a name that could lead elsewhere, or that no export gives; `name` is its beginning."""

    sentence = "the bundle is refused, because it holds a name that is not allowed ({name!a})"
    name: str


class DuplicateMember(Reason):
    sentence = "the bundle is refused, because it holds {name!a} twice"
    name: str


class UnlistedMember(Reason):
    sentence = "the bundle is refused, because it holds {name!a}, which no manifest names"
    name: str


class NotAskedFor(Reason):
    """A machine of a cluster returned another graph than it was to compile; `field` is one of its key's."""

    sentence = "a graph for {field} {found!a} came back, where the plan asks for {wanted}"
    field: str
    found: str
    wanted: str


class SignedByAnother(Reason):
    sentence = "it is not signed with the key of {publisher}"
    publisher: str


class NotPublished(Reason):
    sentence = "it has no publisher's signature"


class BundledGraph(Reason):
    """What is wrong with one graph of a bundle, `graph` by the name of its folder; nothing is imported."""

    graph: str
    reason: Reason

    def clause(self) -> str:
        why = self.reason.damage if isinstance(self.reason, Damaged) else self.reason.text
        return f"the bundle is refused, because of its graph {self.graph!a}: {why}"


class NoRoomForBundle(Reason):
    """The graphs of a bundle do not fit on the disk; bytes."""

    needed: int
    free: int

    def clause(self) -> str:
        return f"the bundle's graphs take {self.needed >> 20} MiB, and {self.free >> 20} MiB are free"
