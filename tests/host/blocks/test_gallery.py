"""What ComfyUI's templates sample, with their own nodes: eager's latents at two sizes, CFG on and off, with LoRAs.

What came of each family is written to build/gallery.json, from which tools/gallery.py makes docs/gallery.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from headless import host
from support.gallery.judge import Gallery, problems
from support.gallery.table import FAMILIES, SHORT

REPORT = host.ROOT / "build" / "gallery.json"


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    return Gallery(tmp_path_factory.mktemp("gallery"))


def _names() -> Iterator[Any]:
    for name in FAMILIES:
        yield pytest.param(name, id=name, marks=[] if name in SHORT else [pytest.mark.full])


@pytest.mark.parametrize("name", list(_names()))
def test_the_latents_are_eagers_and_a_restart_compiles_nothing(name: str, gallery: Gallery) -> None:
    if FAMILIES[name].missing():
        pytest.skip("this ComfyUI has no such class or node")
    row = gallery.run(name, FAMILIES[name])
    gallery.write(REPORT)  # what was seen outlives a run that is stopped
    assert list(problems(FAMILIES[name], row)) == [], row
