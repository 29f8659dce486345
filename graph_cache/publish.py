"""Publishing an entry: stage its files, write the manifest last, and put it in its place by one rename."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..common.reasons import Damaged, ForeignFile, SigningKeyRefused, UnreadableNow, Untrusted, WrongSignature
from ..common.tensor_meta import TensorMeta
from . import constants, first_use_results
from .crash import leftovers
from .crash.liveness import is_nonce, new_nonce
from .crash.quarantine import of_key, quarantine
from .disk import marks
from .entry import Entry, read
from .file_names import check_names
from .files import open_regular, read_regular, sync, sync_folder, write_synced
from .first_use_results import FIRST_USE_FILE, FirstUses
from .integrity import Sound, check, record
from .key import GraphKey
from .layout import entry_name, listed_now, machine_id
from .manifest import CONSTANTS_FILE, MANIFEST_FILE, MOST_BYTES, CodeRecord, Manifest
from .private_copy import copy_files
from .staging import staging
from .trust import ownership
from .trust.open_folder import my_id, opened
from .trust.publishers import PUBLISHER_FILE, PublisherSignature
from .trust.signing import SIGNATURE_FILE, Signer, Trusted
from .trust.trusted_entry import Faulty, Known, read_trusted

log = logging.getLogger("onegraph.graph_cache")

_KEY_ID = re.compile(r"[0-9a-f]{8}")  # as in signatures


@dataclass(frozen=True)
class NewEntry:
    """A graph that was compiled into a private folder.

    Attributes:
        label: the shapes for people, e.g. `any size 64-2048`.
        files: the graph's files in that folder; others there are no part of the entry.
        constants: the weights that the graph reads.
        compile_seconds: wall time of capture, compile and trial load.
        made_by: version of the pack.
        code: the functions that the graph was captured from, where they are known.
        cuda_graphs: whether its calls may be captured as CUDA graphs.
        outputs: how many tensors it returns.
        signature: of a block's graph.
    """

    label: str
    files: Sequence[str]
    constants: tuple[TensorMeta, ...]
    compile_seconds: float
    made_by: str
    code: CodeRecord | None = None
    cuda_graphs: bool = False
    outputs: int = 1
    signature: dict[str, Any] | None = None


class NotPublishedError(OSError):
    """A graph could not be written anywhere.

    Attributes:
        error: what went wrong there.
        location: where it was tried first.
    """

    def __init__(self, error: OSError, location: Path) -> None:
        super().__init__(*error.args)
        self.error = error
        self.location = location


# What holds while a staging folder gets the name of its entry; see `Inventory.room`.
Room = Callable[[Path, Path], contextlib.AbstractContextManager[None]]


def no_budget(staged: Path, final: Path) -> contextlib.AbstractContextManager[None]:
    """Publish without a budget, where a user chose the folder."""
    return contextlib.nullcontext()


def publish(
    key: GraphKey, compiled: Path, new: NewEntry, locations: Sequence[Path], signer: Signer, room: Room = no_budget
) -> Entry:
    """Make a graph's files in a private folder a signed entry in one of the locations.

    Digests and signature are of the private files, so what anybody does to the copy in the store changes nothing.

    Raises:
        NotPublishedError: it cannot be written anywhere, or look-ups would refuse it.
    """
    first: NotPublishedError | None = None
    left = [*locations]
    manifest, data, signatures = _signed(key, compiled, new, signer)
    while left:
        location = left[0]
        try:
            with staging(left) as staged:
                location = staged.parent
                for name in manifest.files:
                    shutil.copyfile(compiled / name, staged / name)
                return _commit(key, _Staged(staged, manifest, data, signatures, FirstUses(), room), signer)
        except OSError as error:
            log.debug("publishing in %s failed: %s", location, error)
            first = first or NotPublishedError(error, location)
            left = [other for other in left if other != location] if location in left else left[1:]
    raise first or NotPublishedError(OSError("no folder for graphs"), compiled)


def _signed(key: GraphKey, compiled: Path, new: NewEntry, signer: Signer) -> tuple[Manifest, bytes, dict[str, str]]:
    """Make the manifest of a graph's files, its bytes, and this user's signature over them. Raises OSError."""
    if CONSTANTS_FILE in new.files:
        raise OSError(errno.EINVAL, ForeignFile(CONSTANTS_FILE).damage)
    constants.write(compiled, new.constants)
    names = [*sorted(new.files), CONSTANTS_FILE] if new.files else []
    manifest = Manifest(
        key=key.fields(),
        label=new.label,
        files={name: record(compiled / name) for name in names},
        cuda_graphs=new.cuda_graphs,
        outputs=new.outputs,
        code=new.code,
        signature=new.signature,
        compile_seconds=round(new.compile_seconds, 3),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        made_by=new.made_by,
    )
    wrong = check_names(manifest)
    if wrong is not None:
        raise OSError(errno.EINVAL, wrong.damage)
    data = manifest.model_dump_json(indent=1).encode()
    for what, size in (("a manifest", len(data)), ("weights", manifest.files[CONSTANTS_FILE].bytes)):
        if size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"{what} of more than {MOST_BYTES} bytes")
    return manifest, data, {SIGNATURE_FILE: signer.sign(data).model_dump_json(indent=1)}


def share_with_model(key: GraphKey, staged: Path, entry: Entry, signer: Signer, room: Room = no_budget) -> Entry:
    """Make another model's entry an entry of this model too, by hard links where they work. Raises OSError.

    Its manifest stays as it is byte by byte, and so its signatures stay right. What this machine measured comes along,
    unless this model's graph of the key was quarantined here since. Of a publisher's entry that is another user's, the
    files and the signature are copied, and what others measured is no evidence.
    """
    trusted = signer.provenance(entry)
    if not isinstance(trusted, Trusted):
        raise OSError(trusted.text)
    names = [name for name in (SIGNATURE_FILE, PUBLISHER_FILE) if trusted.own or name == PUBLISHER_FILE]
    if not trusted.mine:
        wrong = copy_files(entry, staged)
        if wrong is not None:
            raise OSError(wrong.text)
        copied = _Staged(staged, entry.manifest, entry.text, _signatures(entry, names), FirstUses(), room)
        return _commit(key, copied, signer)
    results = first_use_results.read_all(entry.folder)
    component = staged.parent / key.component
    if of_key(component, listed_now(component), key, signer):
        machines = {name: result for name, result in results.machines.items() if name != machine_id()}
        results = FirstUses(machines=machines)
    for name in entry.manifest.files:
        try:
            os.link(entry.folder / name, staged / name)
        except OSError:
            shutil.copyfile(entry.folder / name, staged / name)
    if (entry.folder / marks.FETCHED_FILE).exists():  # the budget counts it as it does the first
        (staged / marks.FETCHED_FILE).touch()
    return _commit(key, _Staged(staged, entry.manifest, entry.text, _signatures(entry, names), results, room), signer)


def save(key: GraphKey, staged: Path, entry: Entry, signer: Signer) -> Entry:
    """Make a copy of an entry, with its signatures and with what this machine measured. Raises OSError."""
    wrong = copy_files(entry, staged)
    if wrong is not None:
        raise OSError(wrong.text)
    signatures = _signatures(entry, (SIGNATURE_FILE, PUBLISHER_FILE))
    new = _Staged(staged, entry.manifest, entry.text, signatures, first_use_results.read_all(entry.folder))
    return _commit(key, new, signer)


@dataclass(frozen=True)
class Signed:
    """A manifest that a publisher signed.

    Attributes:
        text: the manifest's bytes.
        signatures: over them, by the names of their files.
    """

    manifest: Manifest
    text: bytes
    signatures: Mapping[str, str]

    @classmethod
    def by_publisher(cls, manifest: Manifest, text: bytes, signature: PublisherSignature) -> Signed:
        """What a publisher signed, as an entry's files tell it."""
        return cls(manifest, text, {PUBLISHER_FILE: signature.model_dump_json(indent=1)})


def publish_fetched(key: GraphKey, staged: Path, signed: Signed, signer: Signer, room: Room) -> Entry:
    """Make verified files in a staging folder an entry of the publisher's, usable while that one is trusted.

    Raises:
        OSError: they cannot be moved, or look-ups would refuse them.
    """
    new = _Staged(staged, signed.manifest, signed.text, signed.signatures, FirstUses(), room)
    return _commit(key, new, signer)


def move(source: Path, target: Path) -> None:
    """Move a file, also to another file system. Raises OSError."""
    try:
        source.replace(target)
    except OSError:
        shutil.copyfile(source, target)


def publish_verified(key: GraphKey, staged: Path, signed: Signed, signer: Signer) -> Entry:
    """Make verified files in a staging folder an entry with this user's signature too. Raises OSError."""
    own = {SIGNATURE_FILE: signer.sign(signed.text).model_dump_json(indent=1)}
    new = _Staged(staged, signed.manifest, signed.text, {**own, **signed.signatures}, FirstUses())
    return _commit(key, new, signer)


def _signatures(entry: Entry, names: Sequence[str]) -> dict[str, str]:
    """Read those of an entry's signatures that are there. Raises OSError."""
    found = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            found[name] = read_regular(entry.folder / name, MOST_BYTES).decode(errors="replace")
    return found


@dataclass(frozen=True)
class _Staged:
    """What becomes an entry.

    Attributes:
        text: the manifest's bytes.
        signatures: over them, by the names of their files.
        results: of first uses.
        room: made for it on the disk, while it gets its name.
    """

    folder: Path
    manifest: Manifest
    text: bytes
    signatures: Mapping[str, str]
    results: FirstUses
    room: Room = no_budget


def _commit(key: GraphKey, new: _Staged, signer: Signer) -> Entry:
    """Make a staging folder an entry. Raises OSError, also where look-ups would refuse it."""
    staged, manifest = new.folder, new.manifest
    final = staged.parent / key.component / entry_name(key, manifest)
    for file in manifest.files:
        with open_regular(staged / file) as f:
            sync(f.fileno())
    if new.results.machines:
        write_synced(staged / FIRST_USE_FILE, new.results.model_dump_json(indent=1))
    for name, signature in new.signatures.items():
        write_synced(staged / name, signature)
    write_synced(staged / MANIFEST_FILE, new.text.decode())  # last: without it there is no entry
    with new.room(staged, final):  # others may hold it for a while, and without an owner a folder may be swept
        (staged / leftovers.OWNER_FILE).unlink(missing_ok=True)
        for path in staged.iterdir():
            with contextlib.suppress(OSError):  # file systems without modes refuse it, and need it not
                ownership.close_file(path)
        sync_folder(staged)
        _open_to_readers(staged)
        ownership.make_anywhere(final.parent)
        final, there = _put(staged, final, manifest, signer)
    if there is not None:
        return there
    made = Entry(final, manifest, new.text)
    why = signer.judge(made)
    if isinstance(why, Untrusted):  # the file system makes other modes than it is told
        with opened(final.parent) as component:
            component.remove(final.name, last=(MANIFEST_FILE,))
        raise OSError(why.text)
    return made


def _put(staged: Path, final: Path, manifest: Manifest, signer: Signer) -> tuple[Path, Entry | None]:
    """Give a staging folder its name, or another one beside what is not to be moved. Raises OSError.

    Returns:
        Where it lies; and the same graph, where another process published it meanwhile.
    """
    try:
        staged.rename(final)
    except OSError:
        _drop_orphans(final, signer)
        final = _own_place(final, signer)
        found = read(final)  # this user's, if there is any
        state = _compared(found, manifest) if isinstance(found, Entry) else found
        if isinstance(found, Entry) and isinstance(state, Sound):
            return final, found
        if isinstance(state, UnreadableNow):
            raise
        if final.exists():
            quarantine(final)
        staged.rename(final)
    sync_folder(final.parent)
    return final, None


def _open_to_readers(staged: Path) -> None:
    """Let others read a folder, as they may read the entries beside it. Raises OSError where it is gone."""
    with opened(staged.parent) as parent, parent.below(staged.name) as folder, contextlib.suppress(OSError):
        if folder.handle is None:
            staged.chmod(0o755)
        else:
            os.fchmod(folder.handle, 0o755)


def _own_place(final: Path, signer: Signer) -> Path:
    """Give the place of an entry, or one beside it where what has it is not for this process to move.

    That is another user's entry, or one of a version of the pack that this one does not know.

    Raises:
        OSError: nobody can tell now whose entry it is.
    """
    for place in (final, final.with_name(f"{final.name}-{signer.sign(b'').key}")):
        try:
            (place / MANIFEST_FILE).lstat()
        except (FileNotFoundError, NotADirectoryError):  # no entry
            return place
        except OSError as error:
            log.debug("%s: %s", place, error)
        there = read_trusted(place, signer)
        if (isinstance(there, Known) and there.trusted.own) or (isinstance(there, Faulty) and there.mine):
            return place
        if isinstance(there, UnreadableNow):
            raise OSError(there.detail)
    return final.with_name(f"{final.name}-{new_nonce()}")


def _drop_orphans(final: Path, signer: Signer) -> None:
    """Remove what lies beside an entry because of keys that are gone, so that starts without a key leave one at most.

    The first of them stays, for it may be another installation's. Never raises OSError.
    """
    with contextlib.suppress(OSError), opened(final.parent) as component:
        for name in component.names():
            beside = name.removeprefix(f"{final.name}-")
            if beside == name or not (is_nonce(beside) or _KEY_ID.fullmatch(beside)):  # a graph of other code, perhaps
                continue
            there = read_trusted(final.with_name(name), signer)
            if isinstance(there, WrongSignature | SigningKeyRefused) and component.stat(name).st_uid == my_id():
                component.remove(name)


def _compared(there: Entry, manifest: Manifest) -> Sound | Damaged | UnreadableNow | None:
    """Whether what another process published meanwhile is whole; None if it is another graph.

    The name of a folder tells little: a key's digest is short, and people rename and copy folders.
    """
    same = there.manifest.key == manifest.key and there.manifest.code == manifest.code
    return check(there) if same else None
