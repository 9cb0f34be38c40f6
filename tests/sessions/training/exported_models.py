"""Models as torch's exporter writes them, with its metadata."""

from __future__ import annotations

import io
import warnings
from typing import Any

import onnx
import onnx_ir as ir
import torch

PREFIX = {"signature": "pkg.torch.export.ExportedProgram.graph_signature"}
PREFIX |= {"kind": "pkg.torch.export.graph_signature.InputSpec.kind"}
PREFIX |= {"sources": "pkg.onnxscript.optimizer.folded_from", "call": "pkg.torch.onnx.fx_node"}


def add_exporter_metadata(
    model: ir.Model,
    parameters: list[str],
    sources: dict[str, list[str]] | None = None,
    kinds: dict[str, str] | None = None,
) -> ir.Model:
    """Write as metadata which values were parameters, and what tensors were made from."""
    lines = [f"p_{name}: PARAMETER target='{name}'" for name in parameters]
    model.graph.metadata_props[PREFIX["signature"]] = "\n".join(["", "# inputs", *lines, ""])
    for name, made_from in (sources or {}).items():
        model.graph.initializers[name].metadata_props[PREFIX["sources"]] = repr(made_from)
    for name, kind in (kinds or {}).items():
        model.graph.initializers[name].metadata_props[PREFIX["kind"]] = kind
    return model


def exported(module: torch.nn.Module, *inputs: torch.Tensor, **options: Any) -> onnx.ModelProto:
    """x -> y, from the newer exporter."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = {"input_names": ["x"], "output_names": ["y"]}
        program = torch.onnx.export(module, inputs, dynamo=True, verbose=False, **names, **options)
        assert program is not None
        program.save(stream)
    return onnx.load_model_from_string(stream.getvalue())


def exported_by_torchscript(
    module: torch.nn.Module, x: torch.Tensor, **options: Any
) -> onnx.ModelProto:
    """x -> y, from the older exporter."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = {"input_names": ["x"], "output_names": ["y"]}
        torch.onnx.export(module, (x,), stream, dynamo=False, **names, **options)
    return onnx.load_model_from_string(stream.getvalue())
