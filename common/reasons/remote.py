"""Why a remote store gives no graph. `store` is its address for people: no password, no path of this machine."""

from __future__ import annotations

from .base import Reason
from .store import Damaged, Untrusted


class RemoteStore(Reason):
    """A remote store gave nothing that may be used; each way has a class of its own. It never stops a run."""

    sentence = "the store {store} gave no graph"
    store: str


class StoreUnreachable(RemoteStore):
    sentence = "the store {store} does not answer as expected ({detail})"
    detail: str


class StoreTooSlow(RemoteStore):
    sentence = "the store {store} gave no answer within {seconds:.3g} s"
    seconds: float


class StoreForbidden(RemoteStore):
    """Some object stores answer so for what they do not have, too, unless the reader may list."""

    sentence = "the store {store} refuses to tell whether it has the graph; let workers read and list it"


class StoreRedirects(RemoteStore):
    sentence = "the store {store} sends readers elsewhere, which is not followed; name the address that it leads to"


class StoreBadAddress(RemoteStore):
    sentence = "{store} is no address of a store; write it like https://, s3://, gs://, hf:// or file:///"


class StoreNeedsPackage(RemoteStore):
    sentence = "the store {store} needs the package {package}, which `pip install {package}` installs"
    package: str


class StoreWithoutPublisher(RemoteStore):
    sentence = "the store {store} is not asked, because no publisher is trusted; see `onegraph trust add`"


class StoreBadRecord(RemoteStore):
    sentence = "the store {store} has a record of the graph that cannot be read ({detail})"
    detail: str


class StoreUnknownPublisher(RemoteStore):
    sentence = "the store {store} has a record that is not by {publisher}, whose it should be"
    publisher: str


class StoreWrongSignature(RemoteStore):
    sentence = "the store {store} has a record of {publisher} whose signature is wrong"
    publisher: str


class StoreOtherKey(RemoteStore):
    sentence = "the store {store} gave the record of another graph"


class StoreIncomplete(RemoteStore):
    sentence = "the store {store} lacks {file} of the graph; it may be half written"
    file: str


class StoreWrongBytes(RemoteStore):
    sentence = "the store {store} gave other bytes for {file} of the graph than the publisher signed"
    file: str


class StoreGraphWithdrawn(RemoteStore):
    sentence = "the store {store} gave a graph that {publisher} has withdrawn"
    publisher: str


class StoreBadName(RemoteStore):
    sentence = "the store {store} names what no store holds ({name!a})"
    name: str


class StoreGraphRefused(RemoteStore):
    """The publisher signed what no graph is."""

    reason: Reason

    def clause(self) -> str:
        why = self.reason.damage if isinstance(self.reason, Damaged) else self.reason.text
        return f"the graph of the store {self.store} is refused: {why}"


class StoreGraphNotKept(RemoteStore):
    sentence = "the graph of the store {store} cannot be kept here ({detail})"
    detail: str


class StoreCannotList(RemoteStore):
    sentence = "the store {store} cannot be listed; use an address by which it can"


class StoreReadOnly(RemoteStore):
    sentence = "the store {store} cannot be written ({detail})"
    detail: str


class StoreLog(RemoteStore):
    """The log of what a publisher published is not as the publisher wrote it, or as this user saw it before."""

    sentence = "the store {store} has no log of {publisher} that may be believed"
    publisher: str


class StoreLogMissing(StoreLog):
    sentence = "the store {store} had a log of what {publisher} published, and has none any more"


class StoreLogNotSigned(StoreLog):
    sentence = "the store {store} has a log of what {publisher} published that {publisher} did not sign"


class StoreLogBroken(StoreLog):
    sentence = "the store {store} has a log of what {publisher} published whose line {number} was changed or left out"
    number: int


class StoreLogOlder(StoreLog):
    sentence = "the store {store} shows {lines} lines of what {publisher} published, and showed {seen} before"
    lines: int
    seen: int


class StoreLogForked(StoreLog):
    sentence = "the store {store} shows another log of what {publisher} published than before"


class StoreGraphNotLogged(StoreLog):
    sentence = "the store {store} gave a graph that is not in the log of what {publisher} published"


class GraphWithdrawn(Untrusted):
    sentence = "the cached graph was withdrawn by its publisher {publisher}"
    publisher: str
