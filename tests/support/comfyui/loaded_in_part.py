"""Models of which the host loads a half, as it does where there is no room for all. On a CPU both memories are one."""

from __future__ import annotations

from typing import Any


def simulate(monkeypatch: Any) -> None:
    """Half of each model is loaded; what is not counts as elsewhere."""
    from comfy.model_patcher import ModelPatcher

    from onegraph.host.weights import low_vram_blocks

    real = ModelPatcher.load

    def load(self: Any, device_to: Any = None, *args: Any, **kwargs: Any) -> Any:
        if self.model_size() < 1 << 16:
            return real(self, device_to, *args, **kwargs)
        return real(self, device_to, lowvram_model_memory=self.model_size() // 2)

    def is_brought(self: Any, layer: Any, *weights: Any) -> bool:
        return bool(getattr(layer, "comfy_cast_weights", False))

    monkeypatch.setattr(ModelPatcher, "load", load)
    monkeypatch.setattr(low_vram_blocks.StagedBlocks, "_is_brought", is_brought)
