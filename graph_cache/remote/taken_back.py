"""Withdrawals in a store: one signed file for each, so that machines which write at once lose none, and one list.

The list is for readers that cannot list files, and saves all others from reading each. It is made of the files, so
whoever copies a store can make it, too.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from ...common.reasons import StoreForbidden, StoreReadOnly
from ..trust import withdrawals
from . import records
from .transport import Endless, Patience, Remote, StoreError


def read(
    remote: Remote, public: str, patience: Patience, known: Container[str] = ()
) -> Iterator[tuple[dict[str, bytes], bool]]:
    """Read what a publisher takes back: the list, then each file that it lacks.

    Args:
        known: manifests that are known as withdrawn.

    Returns:
        Of each, by manifest, the signed lines; and whether all of it is the publisher's.

    Raises:
        StoreError: the store does not tell.
        NoCryptographyError: nothing can be verified.
    """
    listed, right = _read(remote, records.withdrawn_name(public), public, patience, known)
    yield listed, right
    if remote.can_list:
        for digest in _files(remote, public, patience):
            if digest not in listed and digest not in known:
                yield _read(remote, records.withdrawal_name(public, digest), public, patience)


def write(remote: Remote, public: str, lines: Mapping[str, bytes]) -> int:
    """Write the withdrawals that a store lacks, and make its list of all.

    Returns:
        Bytes that were written.

    Raises:
        StoreError: the store cannot be read or written, or does not give back what was written.
    """
    there = _files(remote, public, None)
    new = {digest: line for digest, line in lines.items() if digest not in there}
    for digest, line in new.items():
        remote.write(records.withdrawal_name(public, digest), line)
    listed = {digest: line for digest, line in lines.items() if digest in there}  # the new ones are read back

    def made(files: list[str]) -> bytes:
        for digest in files:
            if digest not in listed:
                file = records.withdrawal_name(public, digest)
                found, right = _read(remote, file, public, Endless())
                listed.update(found)
                if not right:
                    remote.remove(file)  # nobody signed it, and readers would complain of it
        return b"\n".join(listed[digest] for digest in sorted(listed))

    name = records.withdrawn_name(public)
    count = remote.remake(name, withdrawals.MOST_BYTES, lambda: _files(remote, public, None), made)
    if lines.keys() - listed:
        raise StoreError(StoreReadOnly(remote.label, "what was written is not there"))
    return count + sum(map(len, new.values()))


def _files(remote: Remote, public: str, patience: Patience | None) -> list[str]:
    """The digests of the manifests that have a file."""
    try:
        names = map(records.named, remote.list(f"withdrawn/{public}", patience))
    except StoreError as error:
        if patience is None or not isinstance(error.reason, StoreForbidden):
            raise
        return []  # such a reader has the list
    return sorted(one.digest for one in names if one is not None and one.kind == "withdrawal")


def _read(
    remote: Remote, name: str, public: str, patience: Patience, known: Container[str] = ()
) -> tuple[dict[str, bytes], bool]:
    return withdrawals.read(remote.read(name, withdrawals.MOST_BYTES, patience) or b"", public, known)
