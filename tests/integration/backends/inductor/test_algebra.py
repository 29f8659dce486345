"""Code that Inductor writes with our quick strides, and without."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
import torch
from support.models import toy
from torch._inductor import sizevars

from onegraph.backends import get
from onegraph.backends.inductor import packages, settings
from onegraph.compiler import export


def kernels(folder: Path) -> str:
    """The generated C++ that computes, without comments and without what is named after the folder."""
    (source,) = folder.rglob("*.kernel.cpp")
    return re.sub(r"//.*", "", source.read_text())


@pytest.mark.full
def test_the_code_is_the_same_to_the_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = get("inductor")
    with backend.capture_settings(), torch.no_grad():
        exported = export.capture(toy.Call(toy.Reducing()), toy.shapes(), {"batch": 2, "height": 8}, toy.CPU)
        sources = []
        for name in ("ours", "usual"):
            if name == "usual":
                monkeypatch.setattr(settings, "quick_strides", contextlib.nullcontext)
            sizevars.simplify_index_in_vec_range.cache_clear()
            sizevars.stride_at_vec_range.cache_clear()
            with settings.compiler_flags(toy.CPU), settings.quick_strides():
                packages.compile_region(exported.module(), settings.options(toy.CPU), fresh(tmp_path / name), 0)
            sources.append(kernels(tmp_path / name))
    assert "loadu" in sources[0]
    assert sources[0] == sources[1]


def fresh(folder: Path) -> Path:
    folder.mkdir()
    return folder
