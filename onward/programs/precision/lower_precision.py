"""Mixed precision as a pass: nodes of a forward graph that compute in bfloat16 or float16.

    y = Relu(MatMul(x, w))  ->  y = Cast(Relu(MatMul(Cast(x), Cast(w))))

Weights stay float32 inputs, and each is cast once. Graph outputs stay float32. The pass is applied
before a model is differentiated: the gradient of a Cast is a Cast, so gradients are float32, too.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.scopes import walk
from onward.passes.composites import is_call
from onward.passes.drop_unused import drop_unused
from onward.passes.low_types.narrow_nodes import narrow_nodes
from onward.passes.low_types.rounding import KINDS
from onward.passes.low_types.typed_places import Typed
from onward.passes.rewrite import Names
from onward.programs.precision.node_types import NodeTypes
from onward.programs.precision.operator_types import LOW, check_patterns
from onward.programs.precision.precision import Precision


def lower_precision(model: ir.Model, precision: Precision, weights: Collection[str] = ()) -> int:
    """Change a prepared model to mixed precision, in place; how many products are in 16 bits.

    Args:
        model: a model whose values have types
        precision: the settings
        weights: the names of graph inputs that are weights
    """
    opset = model.opset_imports[""]
    given = [value for value in model.graph.inputs if value.name in weights]
    types = NodeTypes(model.graph, precision, opset, given)
    names = Names(model)
    calls = {node: typed for node, typed in types.nodes.items() if is_call(node)}
    constant = {value for value in _arguments(calls) if types.is_constant(value)}
    narrow_nodes(model, precision.kind, types.nodes, names=names)
    for call, typed in calls.items():
        _lower_body(model, call, typed, precision, constant, names)
    drop_unused(model)
    return types.products


def lower_training(model: ir.Model, precision: Precision | None, weights: Collection[str]) -> None:
    """Change a graph to mixed precision before it is differentiated, in place; None: not at all."""
    if precision is None:
        return
    check_patterns(precision.float32, list(walk(model.graph)))
    if not lower_precision(model, precision, weights):
        raise OptionError(
            f"the model has no {', '.join(sorted(LOW))} in float32: there is nothing to compute in "
            f"{precision.kind}\ntrain it without mixed precision"
        )


def lower_evaluation(
    model: ir.Model, precision: Precision | None, weights: Collection[str]
) -> None:
    """Change a graph without gradients as `lower_training` does; its nodes may have other names."""
    if precision is not None:
        lower_precision(model, precision, weights)


def _arguments(calls: Collection[ir.Node]) -> list[ir.Value]:
    return [value for call in calls for value in call.inputs if value is not None]


def _lower_body(
    model: ir.Model,
    call: ir.Node,
    typed: Typed,
    precision: Precision,
    constant: Collection[ir.Value],
    names: Names,
) -> None:
    """Change the body of a call whose inputs have 16 bits; one without types fits any."""
    function = model.functions.get(call.op_identifier())
    if function is None:
        return
    body, dtype = function.graph, KINDS[precision.kind]
    narrow = [body.inputs[place] for place in typed.inputs]
    if any(value.dtype != ir.DataType.FLOAT for value in narrow):
        return
    given = zip(body.inputs, call.inputs)
    weights = [formal for formal, value in given if value is not None and value in constant]
    opset = function.opset_imports.get("", model.opset_imports[""])
    types = NodeTypes(body, precision, opset, weights, narrow)
    narrow_nodes(model, precision.kind, types.nodes, narrow, names)
    for place in typed.outputs:
        _return_narrow(body, place, dtype, names)


def _return_narrow(body: ir.Graph, place: int, dtype: ir.DataType, names: Names) -> None:
    """Return an output of a body in 16 bits: without the Cast that widened it, or with one."""
    value = body.outputs[place]
    maker = value.producer()
    if maker is not None and maker.op_type == "Cast" and maker.inputs[0] is not None:
        before = maker.inputs[0]
        if before.dtype == dtype:
            body.outputs[place] = before
            if not value.uses():
                body.remove(maker, safe=True)
            return
    name = names.fresh(f"{value.name}_16")
    made = ir.Value(name=name, shape=value.shape, type=ir.TensorType(dtype))
    attribute = ir.AttrInt64("to", int(dtype))
    body.append(ir.Node("", "Cast", [value], [attribute], outputs=[made], name=names.fresh("Cast")))
    body.outputs[place] = made
