"""The attention that graphs call on this GPU: measured once, and the one that was measured faster."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from onegraph.backends.inductor import InductorBackend, attention_choice

GPU = torch.device("cuda", 0)
SHAPE = (1, 4, 512, 64)


class Attending(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x * 2, x, x + 1)


def test_this_card_is_measured_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found = attention_choice.measure(GPU)
    assert min(found.milliseconds.values()) > 0
    chosen = attention_choice.cudnn_is_faster(GPU)
    monkeypatch.setattr(attention_choice, "measure", lambda device: pytest.fail("measured twice"))
    assert attention_choice.cudnn_is_faster(GPU) is chosen


@pytest.mark.parametrize("cudnn", [False, True])
def test_graphs_call_the_faster_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cudnn: bool) -> None:
    monkeypatch.setattr(attention_choice, "cudnn_is_faster", lambda device: cudnn)
    backend = InductorBackend()
    with torch.inference_mode(False), torch.no_grad(), backend.capture_settings():
        x = torch.randn(SHAPE, device=GPU, dtype=torch.float16)
        backend.compile(torch.export.export(Attending(), (x,)), [x], tmp_path)
    runner = backend.load(tmp_path, GPU)
    runner.bind({})
    with torch.no_grad(), profile(activities=[ProfilerActivity.CUDA]) as profiled:
        result = runner(x)
        torch.cuda.synchronize()
    kernels = " ".join(event.key for event in profiled.key_averages()).lower()
    assert ("cudnn" in kernels) is cudnn and ("flash_fwd" in kernels) is not cudnn, kernels
    assert isinstance(result, torch.Tensor)
    exact = Attending()(x.float())
    assert float((result.float() - exact).norm() / exact.norm()) < 1e-3
