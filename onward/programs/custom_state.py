"""Custom state: initializers that each step replaces by values of the graph."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.graph_ops import extend
from onward.message_text import suggest_names


def check_state(model: ir.Model, state: Mapping[str, str]) -> None:
    """Check that each initializer and its new value have the same type and shape."""
    values = _values(model)
    for name, value in state.items():
        if name not in model.graph.initializers:
            raise OptionError(
                f"state: {name!r} is not an initializer of the model\n"
                "state must be {name of an initializer: name of the value that it becomes}"
            )
        if value not in values:
            raise OptionError(
                f"state: the model has no value {value!r} for {name!r} to become\n"
                f"{suggest_names(value, values)}"
            )
        old, new = model.graph.initializers[name], values[value]
        if (old.dtype, old.shape) != (new.dtype, new.shape):
            raise OptionError(
                f"state: {name!r} is {old.type}{old.shape} and cannot become {value!r}, "
                f"which is {new.type}{new.shape}"
            )


def return_state(model: ir.Model, state: Mapping[str, str]) -> dict[str, str]:
    """Add the new values to the end of the outputs; initializer -> output."""
    op, values, found = extend(model), _values(model), {}
    for name, value in state.items():
        renewed = op.Identity(values[value])
        renewed.name = found[name] = f"{name}_updated"
        model.graph.outputs.append(renewed)
    return found


def _values(model: ir.Model) -> dict[str, ir.Value]:
    made = (value for node in model.graph for value in node.outputs)
    return {str(value.name): value for value in (*model.graph.inputs, *made) if value.name}
