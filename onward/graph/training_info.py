"""Read and write TrainingInfo: how a model is trained, stored in the model's file.

    infos = read_training_info("model.onnx")
    write_training_info(model, infos, "copy.onnx")

onnx-ir lacks it (ONNX's TrainingInfoProto), so it is read and written here, each part an onnx-ir
graph. An algorithm may read the values of the model's own graph by their names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from onward.errors import InvalidModel
from onward.graph import protos
from onward.graph.files import Source, read_proto, save
from onward.message_text import suggest_names


@dataclass(frozen=True)
class TrainingInfo:
    """One way to train a model: the initial values of its variables, and one step."""

    algorithm: ir.Graph | None = None  # one step: loss, gradients, the variables' next values
    update_binding: Mapping[str, str] = field(default_factory=dict)  # variable -> its next value
    initialization: ir.Graph | None = None  # takes nothing, gives first values
    initialization_binding: Mapping[str, str] = field(default_factory=dict)


def read_training_info(source: Source) -> list[TrainingInfo]:
    """The training info in a model's file; empty if it has none."""
    if isinstance(source, ir.Model):
        raise TypeError("an onnx_ir.Model holds no training info: give what it was loaded from")
    proto, *_ = read_proto(source)
    infos = [_from_proto(info) for info in proto.training_info]
    if infos:
        given, made = _names(proto.graph.initializer), _names(proto.graph.output)
        _check(infos, given, made)
    return infos


def write_training_info(
    model: ir.Model, infos: Sequence[TrainingInfo], path: str | os.PathLike[str]
) -> None:
    """Save a model with its training info."""
    check_training_info(model, infos)
    # concatenated messages are merged: repeated fields are appended
    save(model, path, more=_message(infos).SerializeToString())


def to_proto(model: ir.Model, infos: Sequence[TrainingInfo]) -> onnx.ModelProto:
    """ONNX's message of a model with its training info."""
    check_training_info(model, infos)
    proto = protos.to_proto(model)
    proto.training_info.extend(_message(infos).training_info)
    return proto


def check_training_info(model: ir.Model, infos: Iterable[TrainingInfo]) -> None:
    """Refuse bindings that are not from an output to an initializer, or two to the same one."""
    graph = model.graph
    _check(infos, set(graph.initializers), {str(value.name) for value in graph.outputs})


def _check(infos: Iterable[TrainingInfo], weights: set[str], results: set[str]) -> None:
    updated: set[str] = set()
    for info in infos:
        variables = weights | _initializers(info.algorithm)
        _check_binding(
            "update_binding", info.update_binding, variables, results | _outputs(info.algorithm)
        )
        _check_binding(
            "initialization_binding",
            info.initialization_binding,
            variables,
            _outputs(info.initialization),
        )
        for name in updated & set(info.update_binding):
            raise InvalidModel(f"two training infos update {name!r}: one variable, one update")
        updated |= set(info.update_binding)


def _check_binding(what: str, binding: Mapping[str, str], keys: set[str], values: set[str]) -> None:
    for key, value in binding.items():
        if key not in keys:
            raise InvalidModel(
                f"{what} updates {key!r}, which is not an initializer\n"
                f"{suggest_names(key, sorted(keys), 'the model and the algorithm have')}"
            )
        if value not in values:
            raise InvalidModel(
                f"{what} takes {value!r}, which is not an output\n"
                f"{suggest_names(value, sorted(values))}"
            )


def _names(protos: Iterable[onnx.TensorProto | onnx.ValueInfoProto]) -> set[str]:
    return {proto.name for proto in protos}


def _initializers(graph: ir.Graph | None) -> set[str]:
    return set() if graph is None else set(graph.initializers)


def _outputs(graph: ir.Graph | None) -> set[str]:
    return set() if graph is None else {str(value.name) for value in graph.outputs}


def _from_proto(proto: onnx.TrainingInfoProto) -> TrainingInfo:
    return TrainingInfo(
        algorithm=_graph(proto, "algorithm"),
        update_binding={entry.key: entry.value for entry in proto.update_binding},
        initialization=_graph(proto, "initialization"),
        initialization_binding={e.key: e.value for e in proto.initialization_binding},
    )


def _graph(proto: onnx.TrainingInfoProto, name: str) -> ir.Graph | None:
    if not proto.HasField(name):
        return None
    try:
        graph: ir.Graph = ir.from_proto(getattr(proto, name))
    except Exception as error:  # onnx-ir raises many kinds on broken graphs
        raise InvalidModel(f"the training info's {name} breaks ONNX's rules: {error}") from error
    return graph


def _message(infos: Iterable[TrainingInfo]) -> onnx.ModelProto:
    """A message that holds nothing but training infos."""
    message = onnx.ModelProto()
    for info in infos:
        proto = message.training_info.add()
        if info.algorithm is not None:
            proto.algorithm.CopyFrom(ir.to_proto(info.algorithm))
        if info.initialization is not None:
            proto.initialization.CopyFrom(ir.to_proto(info.initialization))
        for key, value in info.update_binding.items():
            proto.update_binding.add(key=key, value=value)
        for key, value in info.initialization_binding.items():
            proto.initialization_binding.add(key=key, value=value)
    return message
