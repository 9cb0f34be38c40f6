"""Export: an evaluation model as a model for inference, the parameters in it. Loads onnx."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.files import load, save
from onward.graph.scopes import reads
from onward.training.api.flat import Array


def export(
    eval_model: str | os.PathLike[str],
    parameters: Mapping[str, Array],
    outputs: Sequence[str],
    path: str | os.PathLike[str],
) -> None:
    """Write the part of a model that gives these outputs, with these values for its parameters."""
    with open(eval_model, "rb") as file:
        if file.read(8)[4:] == b"ORTM":
            raise OptionError(
                f"{os.fspath(eval_model)!r} is in onnxruntime's own format, which only it reads\n"
                "give Module the evaluation model as .onnx to export from it"
            )
    model = load(eval_model, any_domain=True)
    graph = model.graph
    _keep_outputs(graph, outputs)
    needed = _prune(graph)
    for value in list(graph.inputs):
        name = str(value.name)
        if name in parameters or value not in needed:
            graph.inputs.remove(value)
        if name in parameters and value in needed:
            value.const_value = ir.tensor(parameters[name].copy(), name=name)
            graph.register_initializer(value)
    for name in [name for name, value in graph.initializers.items() if value not in needed]:
        del graph.initializers[name]
    for key in [key for key in model.metadata_props if key.startswith("onward.")]:
        del model.metadata_props[key]
    save(model, path)


def _keep_outputs(graph: ir.Graph, names: Sequence[str]) -> None:
    values = {str(value.name): value for node in graph for value in node.outputs}
    values |= {str(value.name): value for value in graph.inputs}
    if not names:
        raise OptionError("an inference model has at least one output\nname those you want")
    for name in names:
        if name not in values:
            known = ", ".join(repr(str(value.name)) for value in graph.outputs)
            raise OptionError(
                f"the evaluation model has no value {name!r}\nits outputs are {known}"
            )
    graph.outputs.clear()
    graph.outputs.extend(values[name] for name in names)


def _prune(graph: ir.Graph) -> set[ir.Value]:
    """Remove the nodes that no output needs; what the others read."""
    needed = set(graph.outputs)
    for node in reversed(graph):
        if any(value in needed for value in node.outputs):
            needed.update(reads(node))
        else:
            graph.remove(node, safe=True)
    return needed
