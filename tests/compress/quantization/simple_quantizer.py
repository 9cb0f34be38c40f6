"""SimpleQuantizer: QDQ around MatMul, Conv and others with min-max ranges, to test the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.quantization.quantization_plan import NodeFormat, Plan
from onward.graph.int8_weights import CUT_OFF_FREE
from onward.graph.shapes.infer import infer_shapes
from onward.passes.drop_unused import drop_unused
from onward.passes.pipelines import BASIC, PREPARE
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

OPERATORS = ("MatMul", "Conv", "Tanh")  # onnxruntime has no integer kernel for Tanh
_STATIC = NodeFormat(kind="static")


class SimpleQuantizer:
    """A small Quantizer: static int8, one scale for a tensor, one group for each node."""

    def __init__(self, model: ir.Model, calibration: Calibration, **settings: Any) -> None:
        self._model = infer_shapes(BASIC(PREPARE(model)))
        for number, node in enumerate(self._model.graph):
            node.name = f"{node.op_type}_{number}"
        self.plan: Plan = {
            str(node.name): _STATIC for node in self._model.graph if node.op_type in OPERATORS
        }
        self._ranges = self._measure(calibration)
        self.refused: Mapping[str, str] = {}

    @property
    def model(self) -> ir.Model:
        return self._model

    def groups(self, plan: Plan) -> Sequence[Sequence[str]]:
        return [[name] for name in plan]

    def write(self, plan: Plan) -> ir.Model:
        model = self._model.clone()
        for node in list(model.graph):
            if node.name in plan:
                for place, value in enumerate(node.inputs):
                    if value is not None and (value.const_value is None or place == 1):
                        node.replace_input_with(place, self._convert(model.graph, node, value))
        return drop_unused(model)

    def _measure(self, calibration: Calibration) -> dict[str, tuple[float, float]]:
        """The smallest and the largest number of each value that a planned node reads."""
        model = self._model.clone()
        wanted = {
            str(value.name): value
            for node in model.graph
            if node.name in self.plan
            for value in node.inputs
            if value is not None and value.const_value is None
        }
        inner = [value for value in wanted.values() if not value.is_graph_input()]
        model.graph.outputs.extend(v for v in inner if v not in list(model.graph.outputs))
        session = InferenceSession(model, SessionOptions(log_severity_level=4))
        ranges: dict[str, tuple[float, float]] = {}
        for feeds in calibration.batches():
            found = dict(zip([v.name for v in inner], session.run([v.name for v in inner], feeds)))
            for name in wanted:
                x = found.get(name, feeds.get(name))
                low, high = ranges.get(name, (0.0, 0.0))
                ranges[name] = (min(low, float(x.min())), max(high, float(x.max())))
        return ranges

    def _convert(self, graph: ir.Graph, node: ir.Node, value: ir.Value) -> ir.Value:
        name = str(value.name)
        if value.const_value is not None:
            w = value.const_value.numpy()
            scale = float(np.abs(w).max()) / CUT_OFF_FREE
            quantized = np.round(w / scale).astype(np.int8)
            x = _constant(graph, f"{name}_int8", quantized)
            return _add(
                graph, node, "DequantizeLinear", [x, *_scale(graph, name, scale, np.int8(0))]
            )
        low, high = self._ranges[name]
        scale = max(high - low, 1e-8) / 255
        pair = _scale(graph, name, scale, np.uint8(round(-low / scale)))
        q = _add(graph, node, "QuantizeLinear", [value, *pair])
        return _add(graph, node, "DequantizeLinear", [q, *pair])


def _constant(graph: ir.Graph, name: str, array: np.ndarray[Any, Any]) -> ir.Value:
    if name not in graph.initializers:
        graph.initializers.add(ir.Value(name=name, const_value=ir.tensor(array, name=name)))
    return graph.initializers[name]


def _scale(graph: ir.Graph, name: str, scale: float, zero: Any) -> list[ir.Value]:
    number = _constant(graph, f"{name}_scale", np.array(scale, np.float32))
    return [number, _constant(graph, f"{name}_zero", np.array(zero))]


def _add(graph: ir.Graph, before: ir.Node, op_type: str, inputs: list[ir.Value]) -> ir.Value:
    node = ir.node(op_type, inputs)
    node.outputs[0].name = f"{inputs[0].name}_{op_type}_{before.name}"
    graph.insert_before(before, node)
    return node.outputs[0]
