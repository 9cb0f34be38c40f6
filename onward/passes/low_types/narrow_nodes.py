"""Change nodes to a 16-bit type: a value is cast where a node that computes so meets another one.

    MatMul(x, w)  ->  Cast(MatMul(Cast(x, to=float16), w16), to=float32)

Neighbours that both compute in 16 bits read each other's values without a Cast. Each value is cast
once, for all that read it; graph inputs and outputs keep their types.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from onward.graph.operators import SHAPE_ONLY
from onward.passes.low_types.rounding import KINDS, clamp, round_to
from onward.passes.low_types.typed_places import Typed
from onward.passes.rewrite import Names

_OF_ANY_TYPE = SHAPE_ONLY | {"Cast"}  # they read 16 bits as well as 32, with the same result


def narrow_nodes(
    model: ir.Model,
    kind: str,
    nodes: Mapping[ir.Node, Typed],
    narrow: Collection[ir.Value] = (),
    names: Names | None = None,
) -> None:
    """Change nodes of a model, or of a function's body, to 16 bits, in place.

    Args:
        model: the model
        kind: "float16" or "bfloat16"
        nodes: the nodes that change, and which of their inputs and outputs do
        narrow: values that have 16 bits already, such as the inputs of a function's body
        names: that of the model; None: new ones are made
    """
    _Narrowing(names or Names(model), kind, nodes, narrow).run()


class _Narrowing:
    """The change of some nodes to 16 bits."""

    def __init__(
        self,
        names: Names,
        kind: str,
        nodes: Mapping[ir.Node, Typed],
        narrow: Collection[ir.Value],
    ) -> None:
        self._kind, self._dtype, self._nodes = kind, KINDS[kind], nodes
        self._names = names
        self._given = list(narrow)
        self._made = {
            node.outputs[place] for node, typed in nodes.items() for place in typed.outputs
        } | {*narrow}
        self._narrow: dict[ir.Value, ir.Value] = {}  # by the float32 value

    def run(self) -> None:
        for node, typed in self._nodes.items():
            for place in typed.inputs:
                value = node.inputs[place]
                if value is not None and value not in self._made:
                    node.replace_input_with(place, self._narrow_form(value))
        for node, typed in self._nodes.items():
            for place in typed.outputs:
                self._widen_for_others(node.outputs[place])
        for value in self._given:
            self._widen_for_others(value)

    def _narrow_form(self, value: ir.Value) -> ir.Value:
        """A float32 value in 16 bits: another constant, or a Cast."""
        if value not in self._narrow:
            is_constant = value.is_initializer() and not value.is_graph_input()
            make = self._constant if is_constant else self._cast
            self._narrow[value] = make(value, self._dtype, f"{value.name}_16")
        return self._narrow[value]

    def _constant(self, value: ir.Value, dtype: ir.DataType, wish: str) -> ir.Value:
        assert value.const_value is not None and value.graph is not None
        array = round_to(clamp(value.const_value.numpy(), self._kind), self._kind)
        name = self._names.fresh(wish)
        made = ir.Value(name=name, shape=value.shape, type=ir.TensorType(dtype))
        made.const_value = ir.tensor(np.asarray(array), dtype=dtype, name=name)
        _owner(value).register_initializer(made)
        return made

    def _cast(self, value: ir.Value, dtype: ir.DataType, wish: str) -> ir.Value:
        """A Cast of a value, directly behind the node that makes it."""
        name = self._names.fresh(wish)
        made = ir.Value(name=name, shape=value.shape, type=ir.TensorType(dtype))
        to = ir.AttrInt64("to", int(dtype))
        cast = ir.Node("", "Cast", [value], [to], outputs=[made], name=self._names.fresh("Cast"))
        graph, producer = _owner(value), value.producer()
        if producer is not None:
            graph.insert_after(producer, cast)
        else:
            graph.insert_before(next(iter(graph)), cast)
        return made

    def _widen_for_others(self, value: ir.Value) -> None:
        """Change a value to 16 bits; a Cast gives float32 to those that do not compute so."""
        others = [
            (node, place) for node, place in value.uses() if not self._reads_narrow(node, place)
        ]
        graph = _owner(value)
        places = [place for place, output in enumerate(graph.outputs) if output is value]
        value.type = ir.TensorType(self._dtype)  # the old one is the original model's, too
        if not others and not places:
            return
        wide = self._cast(value, ir.DataType.FLOAT, f"{value.name}_32")
        for node, place in others:
            node.replace_input_with(place, wide)
        for place in places:
            graph.outputs[place] = wide
        if places:  # the output's name stays
            value.name, wide.name = wide.name, value.name

    def _reads_narrow(self, node: ir.Node, place: int) -> bool:
        if node in self._nodes:
            return place in self._nodes[node].inputs
        return node.domain == "" and node.op_type in _OF_ANY_TYPE


def _owner(value: ir.Value) -> ir.Graph:
    """The graph that a value belongs to."""
    graph = value.graph
    assert isinstance(graph, ir.Graph)
    return graph
