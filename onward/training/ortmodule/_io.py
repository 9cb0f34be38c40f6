"""_InputInfo: the tensors that a captured graph takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _InputInfo:
    """The names of a graph's inputs; which need gradients; `schema` differs where calls do."""

    names: tuple[str, ...]
    require_grad_names: list[str]
    schema: tuple[str, ...]


def parse_inputs_for_onnx_export(
    all_input_parameters: Sequence[Any],
    onnx_graph: Any,
    schema: tuple[str, ...],
    args: Any,
    kwargs: Mapping[str, Any],
) -> _InputInfo:
    """The tensors that a call gives to an exported model, in the order of its inputs."""
    flat = [*(args if isinstance(args, (list, tuple)) else [args]), *kwargs.values()]
    needs = [bool(getattr(value, "requires_grad", False)) for value in flat]
    return _InputInfo(schema, [n for n, need in zip(schema, needs) if need], schema)
