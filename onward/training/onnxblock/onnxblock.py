"""ForwardBlock and TrainingBlock: blocks whose result is a model, or a pair of models."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.graph.external import embedded, map_external, referenced
from onward.graph.files import weight_bytes
from onward.training import artifact_graphs
from onward.training.onnxblock import _graph_utils, blocks, model_accessor
from onward.training.trained_parameters import Groups

Parameters = tuple[list[onnx.TensorProto], list[onnx.TensorProto]]  # trainable, frozen
Array = np.ndarray[Any, Any]

_NO_PARAMETERS = (
    "Please build the training model first before trying to retrieve the parameters.\n"
    "Call the block inside `with onnxblock.base(model):`."
)


class ForwardBlock(blocks.Block):
    """A block whose results are the outputs of a model: `build` returns their names."""

    _model: onnx.ModelProto | None = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Add nodes on top of the values of these names; return the names of the outputs."""

    def to_model_proto(self) -> onnx.ModelProto:
        """The model that was built."""
        if self._model is None:
            raise RuntimeError(
                "Please build the forward models first before trying to retrieve it.\n"
                "Call the block inside `with onnxblock.base(model):`."
            )
        return self._model

    def _finish(self, accessor: model_accessor.ModelAccessor, output: Any) -> Any:
        if accessor.depth:  # a part of another block
            return output
        _graph_utils.register_graph_outputs(accessor.model, output)
        _graph_utils.check(accessor.model)
        accessor.model.CopyFrom(artifact_graphs.to_stock_opset(accessor.model, accessor.opset))
        self._model = onnx.ModelProto()
        self._model.CopyFrom(accessor.model)
        return output


class TrainingBlock(blocks.Block):
    """A block whose first result is a loss: its gradients are added, and an eval model made.

    No argument requires a gradient unless `requires_grad` is called.
    """

    _graphs: artifact_graphs.ArtifactGraphs | None = None
    _models: tuple[onnx.ModelProto, onnx.ModelProto] | None = None
    tied: Groups = None  # names that are one parameter; None: as the model ties them
    clips = False  # whether the optimizer will clip by norm

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Add nodes on top of the values of these names; return the loss, then other outputs."""

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Train a parameter (or ask for an input's gradient); with False, freeze a parameter."""
        self._requested()[argument_name] = value

    def parameters(self) -> Parameters:
        """The trainable and the frozen parameters, with the model's initial data."""
        if self._graphs is None:
            raise RuntimeError(_NO_PARAMETERS)
        kinds = (self._graphs.trainable, self._graphs.frozen)
        trainable, frozen = ([_tensor_proto(name, t) for name, t in kind.items()] for kind in kinds)
        return trainable, frozen

    def arrays(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """The same as numpy arrays, not copied: weights in files stay memory-mapped."""
        if self._graphs is None:
            raise RuntimeError(_NO_PARAMETERS)
        kinds = (self._graphs.trainable, self._graphs.frozen)
        trainable, frozen = ({name: t.numpy() for name, t in kind.items()} for kind in kinds)
        return trainable, frozen

    def to_model_proto(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """The training model and the eval model."""
        training, evaluation = self.to_graphs()
        if self._models is None:
            self._models = _to_proto(training), _to_proto(evaluation)
        return self._models

    def to_graphs(self) -> tuple[ir.Model, ir.Model]:
        """The same two as ir.Models, which may be larger than 2 GB."""
        if self._graphs is None:
            raise RuntimeError(
                "Please build the training and eval models first before trying to retrieve them.\n"
                "Call the block inside `with onnxblock.base(model):`."
            )
        return self._graphs.training, self._graphs.evaluation

    def _requested(self) -> dict[str, bool]:
        """Whether each name is trained; subclasses may skip our constructor."""
        requested: dict[str, bool] = self.__dict__.setdefault("_requires_grad", {})
        return requested

    def _finish(self, accessor: model_accessor.ModelAccessor, output: Any) -> Any:
        if accessor.depth:  # a part of another block
            return output
        model = accessor.model
        _graph_utils.register_graph_outputs(model, output)
        _graph_utils.check(model)
        names = list(dict.fromkeys([output] if isinstance(output, str) else output))
        requested = self._requested()
        trainable = [name for name, wanted in requested.items() if wanted]
        frozen = [name for name, wanted in requested.items() if not wanted]
        self._models = None
        self._graphs = artifact_graphs.build_artifact_graphs(
            to_ir(model, accessor.folder),
            names,
            trainable,
            frozen,
            accessor.opset,
            self.tied,
            self.clips,
        )
        with referenced(self._graphs.training):
            accessor.replace(ir.to_proto(self._graphs.training))
        return output


def to_ir(model: onnx.ModelProto, folder: Path | None) -> ir.Model:
    """A ModelProto as an ir.Model, its external weights memory-mapped."""
    graph = ir.from_proto(model)
    map_external(graph, folder)
    return graph


def _to_proto(model: ir.Model) -> onnx.ModelProto:
    if weight_bytes(model) > model_accessor.PROTOBUF_LIMIT:
        raise RuntimeError(
            "This model is > 2GB: a ModelProto cannot hold its weights.\n"
            "Name them in frozen_params, or let generate_artifacts write it with external weights."
        )
    with embedded(model):
        return ir.to_proto(model)


def _tensor_proto(name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
    proto = ir.to_proto(tensor)
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        proto = ir.to_proto(ir.tensor(tensor.numpy(), name=name))
    proto.name = name
    return proto
