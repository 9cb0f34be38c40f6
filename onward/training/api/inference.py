"""Export: an evaluation model as a model for inference, the parameters in it. Loads onnx."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.files import load, save
from onward.names import near
from onward.passes.modes import eval_mode
from onward.training.api.contents import Array


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
    for value in [value for value in graph.inputs if value.name in parameters]:
        graph.inputs.remove(value)
        value.const_value = ir.tensor(parameters[str(value.name)].copy(), name=value.name)
        graph.register_initializer(value)
    eval_mode(model)  # Dropout that does nothing is gone, and what nobody needs
    for value in list(graph.inputs):
        if not (value.uses() or value.is_graph_output()):
            graph.inputs.remove(value)
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
            hint = near(name, (str(value.name) for value in graph.outputs), "its outputs are")
            raise OptionError(f"the evaluation model has no value {name!r}\n{hint}")
    graph.outputs.clear()
    graph.outputs.extend(values[name] for name in names)
