"""A Python that lacks some packages of this one, as on a machine where nobody installed them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def python_without(folder: Path, *names: str) -> Path:
    """Make an environment in a folder with the packages of this one, and give its Python.

    Args:
        names: what packages are missing begin with.
    """
    venv = pytest.importorskip("venv")  # CPython's embeddable distribution for Windows has none
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    folders = [Path(one) for one in sys.path if Path(one).name == "site-packages"]  # what is in front first
    for path in (path for folder in folders for path in folder.iterdir()):
        if path.suffix != ".pth" and not path.name.lower().startswith(names) and not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)
    if not (packages / "onegraph").exists():  # an editable install is found by a .pth file
        (packages / "onegraph").symlink_to(ROOT)
    return folder / "bin" / "python"
