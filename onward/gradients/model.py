"""gradient(): add the gradients of a model's outputs to the model, in standard operators."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError, UnsupportedModel
from onward.gradients.backward import backward
from onward.gradients.computed_ranks import infer_computed_ranks
from onward.gradients.formula_shapes import infer_from_formulas
from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable
from onward.gradients.stop_gradient import STOPPED, mark_identities, restore_operators
from onward.gradients.table import GRADIENTS
from onward.graph.dtypes import FLOATS
from onward.graph.files import Source, load
from onward.graph.graph_ops import taken_names
from onward.graph.initializer_names import rename
from onward.graph.scopes import ancestors, graphs_of
from onward.message_text import list_names, suggest_names
from onward.passes.composites import DOMAIN, FIRST_IR, VERSION, inline_calls
from onward.passes.downgrade import STOCK_OPSET, lower_opset
from onward.passes.exporters.restore_parameters import split_merged_parameters
from onward.passes.fold import as_graph_inputs
from onward.passes.linear_models import write_linear_models
from onward.passes.ort_workarounds import apply_ort_workarounds
from onward.passes.pipelines import PREPARE, TRAINING
from onward.passes.rewrite import Names
from onward.passes.zip_maps import unzipped, zipped_tensor

SUFFIX = "_grad"

log = logging.getLogger("onward")


def gradient(
    model: Source,
    outputs: str | Sequence[str] | Mapping[str, str],
    wrt: str | Sequence[str],
    *,
    rules: GradientTable = GRADIENTS,
    composites: bool = False,
) -> ir.Model:
    """The model with one more output, `{name}_grad`, for each name in `wrt`: the last, in order.

    `outputs` are scalars, whose sum is differentiated; or, for outputs of any shape, a mapping from
    outputs to the names of new inputs that take their cotangents: {"y": "dy"}. `wrt` names float
    inputs, initializers (those of subgraphs too), values in between, or the coefficients of
    ai.onnx.ml's linear models, named after their nodes: "lr.coefficients", "lr.intercepts".
    Parameters that torch's exporters merged become separate again, with their names in torch.
    With `composites`, gradients that an engine may have as one kernel are calls of model-local
    functions of domain `onward`, whose bodies are standard operators.
    """
    cotangents = dict.fromkeys(_names(outputs)) if not isinstance(outputs, Mapping) else outputs
    copy = load(model, any_domain=True).clone()
    split_merged_parameters(copy)
    if not {*_names(wrt)} <= {*_values(copy)}:  # a coefficient that is still an attribute
        copy = write_linear_models(copy)
    prepared = PREPARE(copy) if composites else inline_calls(PREPARE(copy))
    extend(prepared, cotangents, _names(wrt), rules, composites=composites)
    with as_graph_inputs(prepared.graph, _names(wrt)):
        prepared = TRAINING(prepared)
    if composites:  # for any engine; a session lowers it for its own
        return prepared
    prepared = apply_ort_workarounds(prepared)
    try:
        return lower_opset(prepared, STOCK_OPSET)
    except UnsupportedModel:  # the forward graph needs a newer opset
        return prepared


def extend(
    model: ir.Model,
    outputs: Mapping[str, str | None],
    wrt: Sequence[str],
    rules: GradientTable,
    *,
    allow_unused: bool = False,
    omit_zeros: bool = False,
    composites: bool = False,
) -> dict[str, str]:
    """Add the gradients to a prepared model, in place; return {name in wrt: gradient's name}.

    Where shapes are computed, values other than outputs, wrt and the model's own may change.
    A value that the outputs do not depend on is an error, or with `allow_unused` has a gradient of
    zeros. So has one that they depend on only through operators without gradients, such as
    comparisons; with `omit_zeros`, neither has a gradient. With `composites`, gradients that an
    engine may have as one kernel are calls of functions of domain `onward` (functions.py). Through
    identities that are marked so, no gradient flows (stop_gradient.py).
    """
    restore_operators(model)
    rules = rules | STOPPED
    # calls without a rule, such as gradients themselves, are differentiated through their bodies
    graph = inline_calls(model, lambda call: _has_rule(rules, call)).graph
    lift_weights(model, wrt)
    infer_computed_ranks(model, list(outputs), wrt)
    values = _values(model)
    sources = [_source(values, name) for name in wrt]
    results = {_value(values, name): cotangent for name, cotangent in outputs.items()}
    if not allow_unused:
        _check_path(graph, list(results), sources)
    taken = taken_names(model)
    op = GradientOps(graph, taken, model.opset_imports, rules, model.functions, outlines=composites)
    nodes = dict.fromkeys(graph)
    infer_from_formulas(op, list(nodes))
    seeds = {y: _seed(op, y, cotangent, taken) for y, cotangent in results.items()}
    found = backward(op, list(nodes), seeds, sources)
    mark_identities(model)
    if model.functions:
        model.opset_imports[DOMAIN] = VERSION
        model.ir_version = max(model.ir_version or 0, FIRST_IR)
    names = {}
    for x in sources:
        if omit_zeros and x not in found:
            continue
        total = found[x] if x in found else op.zeros_like(x)
        maker = total.producer()
        if maker is None or maker in nodes or total.is_graph_output():
            total = op.Identity(total)  # it has another name already
        names[str(x.name)] = _add_gradient_output(op, total, x, taken)
    return names


def _has_rule(rules: GradientTable, call: ir.Node) -> bool:
    return rules.find(call.domain, call.op_type, VERSION) is not None


def reached(model: ir.Model, output: str, wrt: Sequence[str]) -> list[str]:
    """The names in `wrt` that a gradient of the output reaches; the model is not changed."""
    copy = model.clone()
    if all(value.name != output for value in copy.graph.outputs):
        copy.graph.outputs.append(_value(_values(copy), output))  # outputs keep their names
    prepared = PREPARE(copy)
    cotangent = Names(prepared).fresh(f"{output}{SUFFIX}")
    found = extend(prepared, {output: cotangent}, wrt, GRADIENTS, omit_zeros=True)
    return [name for name in wrt if name in found]


def lift_weights(model: ir.Model, names: Sequence[str]) -> None:
    """Move initializers with these names from subgraphs to the main graph.

    If several have the same name, the first one moves; the others stay and get new names.
    """
    fresh = Names(model)
    for body in graphs_of(model)[1:]:
        for name in [name for name in body.initializers if name in names]:
            value = body.initializers[name]
            if name in model.graph.initializers:
                rename(value, fresh.fresh(name))
                continue
            del body.initializers[name]
            if value.is_graph_output():  # a subgraph cannot return an outer value
                _return_copy(body, value, fresh)
            model.graph.register_initializer(value)


def _return_copy(body: ir.Graph, value: ir.Value, fresh: Names) -> None:
    name = fresh.fresh(f"{value.name}/copy")
    copy = ir.node("Identity", [value], name=name)
    result = copy.outputs[0]
    result.name, result.type, result.shape = name, value.type, value.shape
    body.append(copy)
    for index, output in enumerate(body.outputs):
        if output is value:
            body.outputs[index] = result


def _names(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(dict.fromkeys(names))


def _values(model: ir.Model) -> dict[str, ir.Value]:
    graph = model.graph
    everything = (*graph.inputs, *graph.initializers.values(), *_made(graph))
    return {str(value.name): value for value in everything if value.name}


def _made(graph: ir.Graph) -> list[ir.Value]:
    return [value for node in graph for value in node.outputs]


def _value(values: Mapping[str, ir.Value], name: str) -> ir.Value:
    if name not in values:
        raise OptionError(
            f"the model has no value {name!r}\n{suggest_names(name, values, 'it has')}"
        )
    return values[name]


def _source(values: Mapping[str, ir.Value], name: str) -> ir.Value:
    value = _value(values, name)
    if value.dtype not in FLOATS:
        kind = value.dtype.name if value.dtype is not None else str(value.type)
        raise OptionError(f"{name!r} is {kind}: only float values have gradients")
    return value


def _check_path(graph: ir.Graph, results: list[ir.Value], sources: list[ir.Value]) -> None:
    """Refuse values that no result depends on: a gradient of zeros would hide a mistake."""
    needed = ancestors(graph, results)
    for source in sources:
        if source not in needed:
            names = ", ".join(repr(value.name) for value in results)
            raise OptionError(
                f"{names} does not depend on {source.name!r}, so there is no gradient\n"
                f"leave {source.name!r} out, or choose an output that depends on it"
            )


def _seed(op: GradientOps, y: ir.Value, cotangent: str | None, taken: set[str]) -> ir.Value:
    """dy: one for a scalar, or a new input with the cotangent's name."""
    tensor = zipped_tensor(y)
    if tensor is not None:
        raise OptionError(
            f"output {y.name!r} is a list of maps (ZipMap): it has no gradient\n"
            f"ask for the tensor that it is made from: {tensor.name!r}"
        )
    if y.dtype not in FLOATS:
        floats = [unzipped(value) for value in op.graph.outputs]
        known = [str(value.name) for value in floats if value.dtype in FLOATS]
        hint = f"\nask for one that is: {list_names(known)}" if known else ""
        raise OptionError(f"output {y.name!r} is not of a float type: it has no gradient{hint}")
    if cotangent is not None:
        if cotangent in taken:
            raise OptionError(
                f"the cotangent of {y.name!r} cannot be named {cotangent!r}: the name is taken\n"
                f'give it another name: outputs={{"{y.name}": "{y.name}_cotangent"}}'
            )
        taken.add(cotangent)
        value = ir.val(cotangent, type=y.type, shape=y.shape)
        op.graph.inputs.append(value)
        return value
    if y.shape is None or any(size != 1 for size in y.shape):
        raise OptionError(
            f"output {y.name!r} has shape {y.shape}: only a scalar has a gradient by itself\n"
            f'give the cotangent a name: outputs={{"{y.name}": "{y.name}_cotangent"}}'
        )
    assert y.dtype is not None
    return op.constant(np.ones(y.shape.numpy(), y.dtype.numpy()))


def _add_gradient_output(op: GradientOps, total: ir.Value, x: ir.Value, taken: set[str]) -> str:
    """Add a gradient to the outputs with the name and the shape that x gives it."""
    name = f"{x.name}{SUFFIX}"
    while name in taken:  # x has a gradient already: this is a second derivative
        name += SUFFIX
    taken.add(name)
    total.name, total.shape = name, x.shape
    op.graph.outputs.append(total)
    return name
