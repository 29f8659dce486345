"""Why graphs are not exported or imported, or a publisher is not trusted. Only commands give these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .base import Reason


@dataclass(frozen=True)
class BadPublisherName(Reason):
    """A name that is empty, too long, or more than letters, digits, dots, dashes and underscores."""

    code = "bad_publisher_name"
    name: str


@dataclass(frozen=True)
class BadPublisherKey(Reason):
    """A public key that is not 64 hex digits."""

    code = "bad_publisher_key"


@dataclass(frozen=True)
class WeakPublisherKey(Reason):
    """A public key is one of the few for which anybody can make signatures."""

    code = "weak_publisher_key"


@dataclass(frozen=True)
class OtherPublisherKey(Reason):
    """The name stands for another key already."""

    code = "other_publisher_key"
    name: str


@dataclass(frozen=True)
class PublisherNotTrusted(Reason):
    """No trusted publisher has the name."""

    code = "publisher_not_trusted"
    name: str


@dataclass(frozen=True)
class NoPublisherKey(Reason):
    """This user has exported nothing under the name yet, so that there is no key."""

    code = "no_publisher_key"


@dataclass(frozen=True)
class TargetExists(Reason):
    """The file that an export is to make is there already."""

    code = "target_exists"
    name: str


@dataclass(frozen=True)
class NoSuchFolder(Reason):
    """There is nothing where graphs are to be exported from or imported from."""

    code = "no_such_folder"
    name: str


@dataclass(frozen=True)
class NotABundle(Reason):
    """A file or folder is nothing that an export made; `detail` is what is wrong with it."""

    code = "not_a_bundle"
    detail: str


@dataclass(frozen=True)
class BundleEndsEarly(Reason):
    """A bundle's file is shorter than its contents."""

    code = "bundle_ends_early"


@dataclass(frozen=True)
class ForbiddenMember(Reason):
    """A bundle holds something else than regular files."""

    code = "forbidden_member"
    name: str
    found: Literal["link", "device", "extension", "other"]


@dataclass(frozen=True)
class BadMemberName(Reason):
    """A bundle holds a name that could lead elsewhere, or that no export gives; `name` is its beginning."""

    code = "bad_member_name"
    name: str


@dataclass(frozen=True)
class DuplicateMember(Reason):
    """A bundle holds a name twice."""

    code = "duplicate_member"
    name: str


@dataclass(frozen=True)
class UnlistedMember(Reason):
    """A bundle holds a file that no manifest in it names."""

    code = "unlisted_member"
    name: str


@dataclass(frozen=True)
class SignedByAnother(Reason):
    """A bundled graph is signed, but with another key than the publisher's."""

    code = "signed_by_another"
    publisher: str


@dataclass(frozen=True)
class NotPublished(Reason):
    """A bundled graph has no publisher's signature, or one that is none."""

    code = "not_published"


@dataclass(frozen=True)
class BundledGraph(Reason):
    """What is wrong with one graph of a bundle, `graph` by the name of its folder; nothing is imported."""

    code = "bundled_graph"
    graph: str
    reason: Reason


@dataclass(frozen=True)
class NoRoomForBundle(Reason):
    """The graphs of a bundle do not fit on the disk; bytes."""

    code = "no_room_for_bundle"
    needed: int
    free: int
