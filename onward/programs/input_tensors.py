"""The tensors that training graphs take as inputs: parameters, state, large frozen weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.gradients.model import lift_weights
from onward.graph.dtypes import FLOATS, HALVES
from onward.programs.program import Array

_LARGE = 1 << 16  # bytes: larger frozen weights are bound, not copied into each graph


@dataclass
class InputTensors:
    """The tensors that training graphs take as inputs, and their first values."""

    trained: dict[str, tuple[str, tuple[int, ...]]]  # name -> type in training, shape
    state: list[str]
    frozen: list[str]
    initial: dict[str, Array]

    @classmethod
    def of(cls, model: ir.Model, names: Sequence[str], state: list[str]) -> InputTensors:
        lift_weights(model, names)
        initializers = model.graph.initializers
        frozen = [
            name
            for name, value in initializers.items()
            if name not in names and name not in state and value.dtype in FLOATS - HALVES
            if value.const_value is not None and value.const_value.nbytes >= _LARGE
        ]
        trained, initial = {}, {}
        for name in (*names, *state, *frozen):
            array = _array(initializers[name])
            if name in names:
                if array.dtype != np.float64:
                    array = array.astype(np.float32)
                trained[name] = (array.dtype.name, array.shape)
            initial[name] = array
        return cls(trained, state, frozen, initial)

    def make_inputs(self, model: ir.Model) -> None:
        """Turn the tensors from initializers into inputs; 16-bit parameters become float32."""
        lift_weights(model, list(self.trained))
        graph = model.graph
        for name in self.initial:
            value = graph.initializers.pop(name, None)
            if value is None:  # a statistic that this graph does not use
                continue
            value.const_value = None
            if name in self.trained and value.dtype in HALVES:  # trained in float32
                _feed_master(graph, value)
            elif value not in graph.inputs:
                graph.inputs.append(value)

    def only(self, names: Sequence[str], base: ir.Model, train: ir.Model) -> InputTensors:
        """The same for fewer parameters; the others become constants of the graph `train`."""
        left = InputTensors.of(base, names, self.state)
        graph = train.graph
        for value in list(graph.inputs):
            name = str(value.name)
            if name in self.trained and name not in left.initial:
                graph.inputs.remove(value)
                value.const_value = ir.tensor(self.initial[name], name=name)
                graph.register_initializer(value)
        return left


def _feed_master(graph: ir.Graph, value: ir.Value) -> None:
    """Feed a 16-bit parameter as float32, and cast it at the beginning of the graph."""
    name, dtype, shape = str(value.name), value.dtype, value.shape
    master = ir.val(name, dtype=ir.DataType.FLOAT, shape=shape)
    cast = ir.node("Cast", [master], {"to": int(dtype or 1)})
    cast.outputs[0].name = value.name = f"{name}.{dtype.name.lower() if dtype else 'cast'}"
    cast.outputs[0].type, cast.outputs[0].shape = value.type, shape
    ir.convenience.replace_all_uses_with(value, cast.outputs[0], replace_graph_outputs=True)
    graph.insert_before(graph[0], cast)
    graph.inputs.append(master)


def _array(value: ir.Value) -> Array:
    assert value.const_value is not None
    return np.array(value.const_value.numpy())
