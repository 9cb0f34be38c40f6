"""What must hold for every model with adapters: at the start, and when they are merged."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.runner.finetune.lora import Adapted, add_lora, merge_lora
from tests.runner.finetune.finetune_models import Array, difference, random, run


def moved(adapted: Adapted) -> dict[str, Array]:
    """Other tensors for the adapters, as if they had been trained."""
    return {
        name: tensor + 0.1 * random(*tensor.shape, seed=i).astype(tensor.dtype)
        for i, (name, tensor) in enumerate(adapted.tensors().items())
    }


def with_tensors(adapted: Adapted, tensors: dict[str, Array]) -> ir.Model:
    model = adapted.model.clone()
    for name, tensor in tensors.items():
        model.graph.initializers[name].const_value = ir.tensor(tensor, name=name)
    return model


def assert_adapts(model: ir.Model, feeds: dict[str, Array], **settings: Any) -> Adapted:
    """Outputs at the start are the base's; merged, those of the adapted model."""
    adapted = add_lora(model, 2, **settings)
    assert difference(run(adapted.model, **feeds), run(model, **feeds)) < 1e-6
    tensors = moved(adapted)
    expected = run(with_tensors(adapted, tensors), **feeds)
    assert difference(expected, run(model, **feeds)) > 1e-3
    merged = merge_lora(adapted, tensors)
    assert difference(run(merged, **feeds), expected) < 1e-5
    assert [node.op_type for node in merged.graph] == [node.op_type for node in adapted.base.graph]
    return adapted
