"""Sentences: why graphs are not exported or imported, or a publisher is not trusted."""

from __future__ import annotations

from .. import reasons
from .base import text
from .store import damage


@text.register
def _(r: reasons.BadPublisherName) -> str:
    return f"{r.name!a} is no name for a publisher: letters, digits, dots, dashes and underscores, at most 64"


@text.register
def _(r: reasons.BadPublisherKey) -> str:
    return "a public key has 64 hex digits, as `onegraph trust show` prints them for the publisher"


@text.register
def _(r: reasons.WeakPublisherKey) -> str:
    return "anybody can make signatures for this public key; ask the publisher for the one of `onegraph trust show`"


@text.register
def _(r: reasons.OtherPublisherKey) -> str:
    return f"{r.name} is trusted with another key already; `onegraph trust remove {r.name}` first if that is meant"


@text.register
def _(r: reasons.PublisherNotTrusted) -> str:
    return f"no publisher is trusted by the name {r.name}; `onegraph trust add` with the public key says who that is"


@text.register
def _(r: reasons.NoPublisherKey) -> str:
    return "there is no publisher's key yet; the first `onegraph export` makes it"


@text.register
def _(r: reasons.TargetExists) -> str:
    return f"{r.name} exists already; choose another name, or remove it first"


@text.register
def _(r: reasons.NoSuchFolder) -> str:
    return f"{r.name} does not exist"


@text.register
def _(r: reasons.NotABundle) -> str:
    return f"this is nothing that `onegraph export` made ({r.detail})"


@text.register
def _(r: reasons.BundleEndsEarly) -> str:
    return "the bundle ends early, as after a broken transfer; fetch it once more"


_FOUND = {
    "link": "a link",
    "device": "a device or a pipe",
    "extension": "an extended header, which no export writes",
    "other": "no regular file",
}


@text.register
def _(r: reasons.ForbiddenMember) -> str:
    return f"the bundle is refused, because {r.name!a} in it is {_FOUND[r.found]}"


@text.register
def _(r: reasons.BadMemberName) -> str:
    return f"the bundle is refused, because it holds a name that is not allowed ({r.name!a})"


@text.register
def _(r: reasons.DuplicateMember) -> str:
    return f"the bundle is refused, because it holds {r.name!a} twice"


@text.register
def _(r: reasons.UnlistedMember) -> str:
    return f"the bundle is refused, because it holds {r.name!a}, which no manifest names"


@text.register
def _(r: reasons.SignedByAnother) -> str:
    return f"it is not signed with the key of {r.publisher}"


@text.register
def _(r: reasons.NotPublished) -> str:
    return "it has no publisher's signature"


@text.register
def _(r: reasons.BundledGraph) -> str:
    why = damage(r.reason) if isinstance(r.reason, reasons.Damaged) else text(r.reason)
    return f"the bundle is refused, because of its graph {r.graph!a}: {why}"


@text.register
def _(r: reasons.NoRoomForBundle) -> str:
    return f"the bundle's graphs take {r.needed / 1e6:.0f} MB, and {r.free / 1e6:.0f} MB are free"
