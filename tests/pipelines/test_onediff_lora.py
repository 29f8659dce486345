"""OneDiffX's names for LoRAs whose work there is none for."""

from __future__ import annotations

import torch

from onegraph.pipelines.onediff import TensorInplaceAssign, update_graph_with_constant_folding_info


def test_weights_that_are_assigned_keep_their_memory() -> None:
    module, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    weights = [*module.parameters(), *other.parameters()]
    before, values = [one.data_ptr() for one in weights], [torch.randn_like(one) for one in weights]
    with TensorInplaceAssign(module, other), TensorInplaceAssign(module):
        for weight, value in zip(weights, values, strict=True):
            weight.data = value
    assert [one.data_ptr() for one in weights] == before
    assert all(torch.equal(one, value) for one, value in zip(weights, values, strict=True))
    assert all(one.requires_grad for one in weights)


def test_what_has_another_shape_or_dtype_is_taken_as_it_is() -> None:
    module = torch.nn.Linear(3, 3)
    with TensorInplaceAssign(module):
        module.weight.data, module.bias.data = torch.zeros(5, 3), torch.ones(3, dtype=torch.float16)
    assert module.weight.shape == (5, 3) and module.bias.dtype == torch.float16


def test_nothing_is_folded() -> None:
    module = torch.nn.Conv2d(3, 3, 3)
    before = module.weight.clone()
    update_graph_with_constant_folding_info(module)
    update_graph_with_constant_folding_info(module, {"weight": before})
    assert torch.equal(module.weight, before)
