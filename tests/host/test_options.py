"""ComfyUI's command-line options that concern graphs."""

from __future__ import annotations

import asyncio

import pytest

from onegraph import nodes
from onegraph.runtime.obtain.registry import Registry


@pytest.mark.parametrize("disabled", [True, False])
def test_cuda_graphs_are_off_where_comfyui_has_none(
    disabled: bool, fresh_process: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comfy.cli_args import args

    monkeypatch.setattr(args, "disable_cuda_graphs", disabled, raising=False)
    asyncio.run(nodes.OneGraphExtension().on_load())
    assert fresh_process.policy.captures is not disabled
