"""Save low-rank adapters to a small file, and load them onto the base model.

    save_adapter("reviews.safetensors", adapted, session.parameters)
    adapted = load_adapter("reviews.safetensors", base)

The file is safetensors, with the settings of the adapters and a digest of the base model's weights:
their names and shapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.checkpoints.model_match import check_match, fingerprint
from onward.checkpoints.tensor_files import StrPath, TensorMetadata, read, write
from onward.errors import CheckpointError, CheckpointMismatch, OptionError, WeightsError
from onward.message_text import suggest_names
from onward.runner.finetune.head import new_head
from onward.runner.finetune.linear_layers import prepare_layers
from onward.runner.finetune.lora import Adapted, LoraSettings, add_lora, split_tensors

_KIND = "onward.lora"
_NOT_AN_ADAPTER = "give a file that save_adapter wrote"


def save_adapter(
    path: StrPath,
    adapted: Adapted,
    tensors: Mapping[str, Any] | None = None,
    *,
    head_outputs: int | None = None,
) -> None:
    """Write the tensors of adapters, and others that were trained with them, to a file.

    Args:
        path: of the file, such as reviews.safetensors
        adapted: what `add_lora` returned
        tensors: trained tensors by name, such as `session.parameters`; None: the model's own
        head_outputs: the outputs of a head that `new_head` gave the model before; the file then
            loads onto the model without it, too
    """
    given = split_tensors(adapted, adapted.tensors() if tensors is None else tensors)
    known = _specs(adapted.base)
    for name in given.others:
        if name not in known:
            raise WeightsError(
                f"the base model has no initializer {name!r}\n{suggest_names(name, known)}"
            )
    settings = dataclasses.asdict(adapted.settings)
    settings["targets"] = list(adapted.settings.targets)
    properties: dict[str, Any] = {
        "kind": _KIND,
        "base": _digest(adapted.base),
        "settings": settings,
    }
    if head_outputs is not None:
        properties["head_outputs"] = head_outputs
    values = adapted.model.graph.initializers
    typed = {
        name: array.astype(
            ir.DataType(values[name].dtype or 1).numpy()
        )  # float16 trains in float32
        for name, array in {**given.pairs, **given.others}.items()
    }
    write(path, typed, properties)


def load_adapter(path: StrPath, base_model: ir.Model) -> Adapted:
    """Load adapters onto the model that they were trained on, or one of the same names and shapes.

    The result is as `add_lora` returns it, with the trained tensors: run its model, train it
    further, or merge it.
    """
    found = read(path)
    if found.properties.get("kind") != _KIND:
        raise CheckpointError(f"{path} does not hold adapters\n{_NOT_AN_ADAPTER}")
    base_model = _with_head(base_model, found.properties)
    if found.properties.get("base") != _digest(prepare_layers(base_model)):
        raise CheckpointMismatch(
            f"{path} holds adapters of another model: the base model's weights differ in name or "
            "shape\nload it onto the model that add_lora was given"
        )
    try:
        settings = LoraSettings(**found.properties["settings"])
    except (KeyError, TypeError, OptionError) as error:
        raise CheckpointError(f"{path}: its settings are damaged: {error}") from error
    adapted = add_lora(base_model, **dataclasses.asdict(settings))
    wanted = _specs(adapted.model)
    own = {name: wanted[name] for name in {*adapted.names, *(found.tensors.keys() & wanted.keys())}}
    check_match(found.tensors, own, str(path))
    for name, array in found.tensors.items():
        graphs = [adapted.model.graph, *([] if name in adapted.names else [adapted.base.graph])]
        for graph in graphs:
            value = graph.initializers[name]
            value.const_value = ir.Tensor(array, dtype=value.dtype, name=name)
    return adapted


def _with_head(base: ir.Model, properties: Mapping[str, Any]) -> ir.Model:
    """The model with the new head that the adapters were trained with, unless it has it."""
    outputs = properties.get("head_outputs")
    if not isinstance(outputs, int) or properties.get("base") == _digest(prepare_layers(base)):
        return base
    return new_head(base, outputs).model


def _specs(model: ir.Model) -> dict[str, TensorMetadata]:
    """The types and shapes of a model's initializers."""
    return {
        str(name): TensorMetadata(
            np.dtype(value.const_value.dtype.numpy()).name,
            tuple(value.const_value.shape.numpy()),
        )
        for name, value in model.graph.initializers.items()
        if value.const_value is not None
    }


def _digest(model: ir.Model) -> str:
    return fingerprint({name: spec.shape for name, spec in _specs(model).items()})
