"""The graphs of a captured program as ONNX models and as files with the peer's names."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import onnx_ir as ir

from onward.errors import UnsupportedModel
from onward.graph.files import save
from onward.passes.older_opsets import convert_to_opset
from onward.passes.pipelines import PREPARE
from onward.pytorch.captured_program import CapturedProgram


def exported_model(program: CapturedProgram, opset: int) -> onnx.ModelProto:
    """The captured model, in an older opset if it fits."""
    return _proto(_in_opset(program.capture.model, opset))


def optimized_model(program: CapturedProgram, opset: int) -> onnx.ModelProto:
    """The captured model with its gradients, in an older opset if it fits."""
    return _proto(_in_opset(program.joint.model, opset))


def save_program(
    program: CapturedProgram, folder: str | os.PathLike[str], prefix: str, mode: str, opset: int
) -> None:
    """Write a program's graphs: as captured, with gradients, and as the engine runs them."""
    captured = program.capture.model
    found = {"torch_exported": _in_opset(captured, opset), "optimized": program.joint.model.clone()}
    if mode == "training":
        found["optimized_pre_grad"] = PREPARE(captured.clone())
    forward, *backward = program.graphs
    found["execution_model"] = forward.clone()
    for i, graph in enumerate(backward):
        found[f"execution_model_backward_{i}"] = graph.clone()
    for kind, model in found.items():
        save(model, Path(folder) / f"{prefix}_{kind}_{mode}.onnx")


def gradient_inputs(program: CapturedProgram) -> list[str]:
    """The names of a call's tensors that get gradients."""
    return [name for name in program.wrt if name in program.capture.inputs]


def _in_opset(model: ir.Model, opset: int) -> ir.Model:
    copy = model.clone()
    try:
        return convert_to_opset(copy, opset)
    except UnsupportedModel:
        return model.clone()


def _proto(model: ir.Model) -> onnx.ModelProto:
    found: onnx.ModelProto = ir.to_proto(model)
    return found
