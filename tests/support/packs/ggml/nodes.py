"""The patcher, which hands LoRAs to the weights."""

from __future__ import annotations

from typing import Any

import comfy.model_patcher
import comfy.utils

from .dequant import is_quantized


class GGUFModelPatcher(comfy.model_patcher.ModelPatcher):
    def patch_weight_to_device(self, key: str, device_to: Any = None, inplace_update: bool = False) -> Any:
        weight = comfy.utils.get_attr(self.model, key)
        if key not in self.patches or not is_quantized(weight):
            return super().patch_weight_to_device(key, device_to, inplace_update)
        adapted = weight.to(device_to)
        adapted.patches = [(self.patches[key], key)]
        return comfy.utils.set_attr_param(self.model, key, adapted)

    def unpatch_model(self, device_to: Any = None, unpatch_weights: bool = True) -> Any:
        for weight in self.model.parameters() if unpatch_weights else ():
            if is_quantized(weight):
                weight.patches = []
        return super().unpatch_model(device_to=device_to, unpatch_weights=unpatch_weights)

    def load(self, *args: Any, force_patch_weights: bool = False, **kwargs: Any) -> None:
        super().load(*args, force_patch_weights=True, **kwargs)

    def clone(self, *args: Any, **kwargs: Any) -> Any:
        cls = type(self)
        self.__class__ = GGUFModelPatcher
        cloned = super().clone(*args, **kwargs)
        self.__class__ = cls
        cloned.__class__ = GGUFModelPatcher
        return cloned
