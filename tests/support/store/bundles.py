"""Bundles for tests: taken apart, changed, and put together again, as a file or a folder."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path

Contents = dict[str, bytes]


def contents(bundle: Path) -> Contents:
    """The files of what was exported, a tar file or a folder, by name."""
    if bundle.is_dir():
        return {path.relative_to(bundle).as_posix(): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    with tarfile.open(bundle) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]


def graphs(files: Contents) -> list[str]:
    """The folders of the graphs in a bundle."""
    found: list[str] = json.loads(files["bundle.json"])["graphs"]
    return found


def member(name: str, data: bytes = b"", **attributes: object) -> tuple[tarfile.TarInfo, bytes]:
    """A member of a tar file, of any type."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    return info, data


def write_tar(
    target: Path,
    files: Contents,
    extra: Iterable[tuple[tarfile.TarInfo, bytes]] = (),
    form: int = tarfile.USTAR_FORMAT,
) -> Path:
    """Write a tar file with these files, and others before them."""
    with tarfile.open(target, "w", format=form) as tar:
        for info, data in [*extra, *(member(name, data) for name, data in files.items())]:
            tar.addfile(info, io.BytesIO(data) if data else None)
    return target


def write_folder(target: Path, files: Contents) -> Path:
    """Write the files into a folder."""
    for name, data in files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o644)
    return target
