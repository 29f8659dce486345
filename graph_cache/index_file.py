"""The file of an index: one for each component. Signed with the user's key, so that nobody else writes one."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from blake3 import blake3

from .files import read_regular, replace_unsynced
from .manifest import Strict
from .trust.signing import Signer

_MOST_BYTES = 64 << 20
_WORTH = 8  # entries: reading the manifests of fewer takes no longer

# Inode, times of modification and change in ns, and size of a file. A change leaves another one.
Stamp = tuple[int, int, int, int]


class Used(NamedTuple):
    """What a first-use result says of this machine.

    Attributes:
        stamp: of its file.
        relative_l2: the largest found; None where nothing was compared.
        speedup: over eager; None where that was not measured.
    """

    stamp: Stamp | None
    relative_l2: float | None
    speedup: float | None


class Row(NamedTuple):
    """What an entry's manifest says.

    Attributes:
        stamp: of the manifest; None where it was too young to rely on.
        signature: stamp of the signature's file, where that was right for this manifest.
        used: the first use, where that was read.
        others: the key without architecture and shapes, as JSON.
        architecture: as JSON.
        shapes: digest of the JSON.
        label: the shapes for people.
        bytes: size of the graph's files.
    """

    stamp: Stamp | None
    signature: Stamp | None
    used: Used | None
    others: str
    architecture: str
    shapes: str
    label: str
    bytes: int


@dataclass(frozen=True)
class Contents:
    """What is known of a component's folder.

    Attributes:
        stamp: of the folder, when all manifests were last compared with their rows; None where it was too young.
        rows: by the name of the entry's folder, in order.
        unread: names without a readable manifest; with its stamp where the manifest is damaged.
        untrusted: names of what nobody signed whom this user trusts, with the manifest's stamp. It is not in the file,
            since trust changes by other things than the manifest.
    """

    stamp: Stamp | None
    rows: Mapping[str, Row]
    unread: Mapping[str, Stamp | None]
    untrusted: Mapping[str, Stamp | None] = field(default_factory=dict, compare=False)

    @property
    def names(self) -> list[str]:
        """The names in the folder, in order."""
        return sorted([*self.rows, *self.unread, *self.untrusted])

    @property
    def is_worth_a_file(self) -> bool:
        """Whether reading the file saves anything."""
        return len(self.rows) >= _WORTH


# A row with numbers of texts in place of `others` and `architecture`.
_Row = tuple[
    Stamp | None, Stamp | None, tuple[Stamp | None, float | None, float | None] | None, int, int, str, str, int
]


class _Body(Strict):
    """As in the file. `texts` are those that rows name by their numbers."""

    version: Literal[1] = 1
    stamp: Stamp | None
    texts: list[str]
    rows: Mapping[str, _Row]
    unread: dict[str, Stamp | None]


def name_of(component: str) -> str:
    """Name the file of a component."""
    return f"{blake3(component.encode('utf-8', 'surrogateescape')).hexdigest(length=8)}.json"


def write(path: Path, component: str, contents: Contents, signer: Signer) -> bool:
    """Write the file in one step; whether there was a key to sign it with. Raises OSError."""
    numbers: dict[str, int] = {}
    rows = {}
    for name, row in contents.rows.items():
        others = numbers.setdefault(row.others, len(numbers))
        architecture = numbers.setdefault(row.architecture, len(numbers))
        rows[name] = (row.stamp, row.signature, row.used, others, architecture, row.shapes, row.label, row.bytes)
    body = _Body(stamp=contents.stamp, texts=list(numbers), rows=rows, unread=dict(contents.unread))
    data = f"{json.dumps(component)}\n{body.model_dump_json()}".encode()
    mac = signer.mac(data)
    if mac is not None:
        replace_unsynced(path, mac.encode() + b"\n" + data)
    return mac is not None


def read(path: Path, signer: Signer) -> Contents | None:
    """Read the file of a component; None where there is none that this user's installation wrote."""
    try:
        mac, _, data = read_regular(path, _MOST_BYTES).partition(b"\n")
        wanted = signer.mac(data)
        if wanted is None or not hmac.compare_digest(mac, wanted.encode()):
            return None
        body = _Body.model_validate_json(data.partition(b"\n")[2])
        texts = body.texts
        rows = {
            name: Row(row[0], row[1], row[2] and Used(*row[2]), texts[row[3]], texts[row[4]], row[5], row[6], row[7])
            for name, row in body.rows.items()
        }
    except (OSError, MemoryError, ValueError, IndexError):  # pydantic's are ValueErrors
        return None
    return Contents(body.stamp, rows, body.unread)


def component_of(path: Path) -> str | None:
    """Tell of which component a file is, without believing the rest of it; None where nobody can tell."""
    try:
        with path.open("rb") as file:
            file.readline(1024)
            found = json.loads(file.readline(1 << 16))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, str) else None
