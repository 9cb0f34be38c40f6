"""Export an evaluation model with its parameters as a model for inference. Loads onnx."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onward.checkpoints.file_contents import Array
from onward.errors import OptionError
from onward.graph.files import load, save
from onward.programs.export import export_model


def export(
    eval_model: str | os.PathLike[str],
    parameters: Mapping[str, Array],
    outputs: Sequence[str],
    path: str | os.PathLike[str],
) -> None:
    """Write the part of a model that computes these outputs, with these parameters."""
    with open(eval_model, "rb") as file:
        if file.read(8)[4:] == b"ORTM":
            raise OptionError(
                f"{os.fspath(eval_model)!r} is in onnxruntime's own format, which only it reads\n"
                "to export, give Module the evaluation model as .onnx"
            )
    model = load(eval_model, any_domain=True)
    for value in [value for value in model.graph.inputs if value.name in parameters]:
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(parameters[str(value.name)].copy(), name=value.name)
        model.graph.register_initializer(value)
    for key in [key for key in model.metadata_props if key.startswith("onward.")]:
        del model.metadata_props[key]
    save(export_model(model, {}, outputs), path)
