"""Run one operator through the torch lowering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import helper

from onward.passes.pipelines import PREPARE
from onward.providers.torch.lower import lower
from onward.providers.torch.table import HOST, KERNELS
from onward.providers.torch.tensors import to_numpy, to_torch

Array = np.ndarray[Any, Any]
Input = Array | list[Array] | None  # a tensor, a sequence, or an input left out


def one_node_model(
    op_type: str,
    inputs: Sequence[Input],
    attributes: dict[str, Any] | None = None,
    outputs: int = 1,
    opset: int = 28,
    domain: str = "",
) -> onnx.ModelProto:
    """A model of one node; every input is a graph input, of the rank and type that is given."""
    names = ["" if value is None else f"x{i}" for i, value in enumerate(inputs)]
    node = helper.make_node(
        op_type, names, [f"y{i}" for i in range(outputs)], domain=domain, **(attributes or {})
    )
    graph = helper.make_graph(
        [node],
        op_type,
        [_declared(name, value) for name, value in zip(names, inputs) if value is not None],
        [onnx.ValueInfoProto(name=name) for name in node.output],
    )
    imports = [helper.make_opsetid(domain, opset)] if domain else []
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *imports])


def _declared(name: str, value: Array | list[Array]) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        dtype = helper.np_dtype_to_tensor_dtype(value[0].dtype)
        return helper.make_tensor_sequence_value_info(name, dtype, None)
    dtype = helper.np_dtype_to_tensor_dtype(value.dtype)
    shape = [f"{name}_{i}" for i in range(value.ndim)]
    return helper.make_tensor_value_info(name, dtype, shape)


def run_op(
    op_type: str,
    inputs: Sequence[Input],
    attributes: dict[str, Any] | None = None,
    outputs: int = 1,
    opset: int = 28,
    domain: str = "",
) -> list[Any]:
    """One operator's outputs, computed by its torch kernel."""
    return run_model(one_node_model(op_type, inputs, attributes, outputs, opset, domain), inputs)


def run_model(model: onnx.ModelProto, inputs: Sequence[Input]) -> list[Any]:
    """A model's outputs, computed by torch; `inputs` in the order of the graph's."""
    prepared = PREPARE(ir.from_proto(model))
    lowered = lower(prepared.graph, KERNELS, HOST)
    feeds = [to_torch(value, torch.device("cpu")) for value in inputs if value is not None]
    with torch.inference_mode():
        results = lowered.forward(*feeds)
    types = [value.dtype.numpy() if value.dtype else None for value in prepared.graph.outputs]
    return [to_numpy(result, dtype) for result, dtype in zip(results, types)]
