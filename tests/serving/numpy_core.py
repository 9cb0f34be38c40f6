"""A core that computes with numpy: what the transports' tests and trials serve."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onward.errors import ModelNotFound, ModelUnavailable, RequestInvalid
from onward.serving.core import Json
from onward.serving.requests import (
    Array,
    Cancel,
    Done,
    InferRequest,
    InferResponse,
    TensorSpec,
)
from onward.serving.tensor_data import DATATYPES, datatype_of

Function = Callable[[dict[str, Array]], dict[str, Array]]


@dataclass
class NumpyModel:
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    run: Function
    labels: list[str] = field(default_factory=list)
    is_ready: bool = True
    max_batch_size: int = 8
    count: int = 0  # rows
    sequences: dict[int | str, Array] = field(default_factory=dict)


def _spec(name: str, datatype: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, datatype, shape)


def _softmax(feeds: dict[str, Array]) -> dict[str, Array]:
    x = np.exp(feeds["x"][:, :3])
    return {"scores": x / x.sum(1, keepdims=True)}


def _simple(feeds: dict[str, Array]) -> dict[str, Array]:
    a, b = feeds["INPUT0"], feeds["INPUT1"]
    return {"OUTPUT0": a + b, "OUTPUT1": a - b}


def models() -> dict[str, NumpyModel]:
    """The models of conformance/serving/models.py."""
    found = {
        f"identity_{each.lower()}": NumpyModel(
            [_spec("x", each, -1, -1)], [_spec("y", each, -1, -1)], lambda feeds: {"y": feeds["x"]}
        )
        for each in DATATYPES
    }
    pair = [_spec("INPUT0", "INT32", -1, 16), _spec("INPUT1", "INT32", -1, 16)]
    sums = [_spec("OUTPUT0", "INT32", -1, 16), _spec("OUTPUT1", "INT32", -1, 16)]
    found["simple"] = NumpyModel(pair, sums, _simple)
    found["classifier"] = NumpyModel(
        [_spec("x", "FP32", -1, 4)],
        [_spec("scores", "FP32", -1, 3)],
        _softmax,
        ["cat", "dog", "eel"],
    )
    found["accumulator"] = NumpyModel(
        [_spec("INPUT", "INT32", -1, 1)], [_spec("OUTPUT", "INT32", -1, 1)], lambda feeds: {}
    )
    return found


class NumpyCore:
    """Answers at once; while `held` is a list, requests wait in it."""

    def __init__(self) -> None:
        self.models = models()
        self.is_ready = True
        self.requests: list[InferRequest] = []
        self.held: list[Callable[[], None]] | None = None
        self.cancelled = 0
        self.refused: list[tuple[str, str, str]] = []
        self.loaded: list[tuple[str, Json]] = []
        self.error: Exception | None = None

    def count_refused(
        self, name: str, version: str, error: Exception, request_id: str = ""
    ) -> None:
        self.refused.append((name, version, str(error)))

    def submit(self, request: InferRequest, done: Done) -> Cancel:
        self.requests.append(request)
        if self.held is not None:
            self.held.append(lambda: done(self._result(request)))
            return self._cancel
        done(self._result(request))
        return lambda: None

    def _cancel(self) -> None:
        self.cancelled += 1

    def _result(self, request: InferRequest) -> InferResponse | Exception:
        try:
            if self.error is not None:
                raise self.error
            outputs = self._outputs(request)
        except Exception as error:
            return error
        return InferResponse(request.model, request.version or "1", outputs, request.id)

    def _outputs(self, request: InferRequest) -> dict[str, Array]:
        model = self._model(request.model, request.version)
        if not model.is_ready:
            raise ModelUnavailable(f"Request for unknown model: '{request.model}' is not ready")
        _check_inputs(request, model.inputs)
        if request.model == "accumulator":
            outputs = {"OUTPUT": _accumulate(request, model)}
        else:
            outputs = model.run(request.inputs)
        model.count += len(next(iter(request.inputs.values())))
        if not request.outputs:
            return outputs
        for each in request.outputs:
            if each.name not in outputs:
                raise RequestInvalid(
                    f"unexpected inference output '{each.name}' for model '{request.model}'"
                )
        return {each.name: outputs[each.name] for each in request.outputs}

    def _model(self, name: str, version: str = "") -> NumpyModel:
        if name not in self.models or version not in ("", "1"):
            raise ModelNotFound(f"Request for unknown model: '{name}' is not found")
        return self.models[name]

    def signature(self, name: str, version: str = "") -> tuple[list[TensorSpec], list[TensorSpec]]:
        model = self._model(name, version)
        return model.inputs, model.outputs

    def labels(self, name: str, version: str, output: str) -> list[str]:
        return self._model(name, version).labels

    def is_model_ready(self, name: str, version: str = "") -> bool:
        return self._model(name, version).is_ready

    def server_metadata(self) -> Json:
        extensions = "binary_tensor_data classification model_repository statistics"
        extensions += " system_shared_memory"
        return {"name": "onward", "version": "0", "extensions": extensions.split()}

    def model_metadata(self, name: str, version: str = "") -> Json:
        model = self._model(name, version)

        def tensors(specs: Sequence[TensorSpec]) -> list[Json]:
            return [{"name": s.name, "datatype": s.datatype, "shape": list(s.shape)} for s in specs]

        return {
            "name": name,
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": tensors(model.inputs),
            "outputs": tensors(model.outputs),
        }

    def model_config(self, name: str, version: str = "") -> Json:
        model = self._model(name, version)

        def tensors(specs: Sequence[TensorSpec]) -> list[Json]:
            return [
                {
                    "name": s.name,
                    "data_type": "TYPE_" + s.datatype.replace("BYTES", "STRING"),
                    "dims": list(s.shape[1:]),
                }
                for s in specs
            ]

        return {
            "name": name,
            "platform": "onnxruntime_onnx",
            "backend": "onnxruntime",
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": model.max_batch_size,
            "input": tensors(model.inputs),
            "output": [
                each | ({"label_filename": "labels.txt"} if model.labels else {})
                for each in tensors(model.outputs)
            ],
            "sequence_batching" if name == "accumulator" else "dynamic_batching": {},
            "a_field_of_ours": 1,
        }

    def statistics(self, name: str = "", version: str = "") -> Json:
        if name:
            self._model(name, version)
        return {
            "model_stats": [
                {
                    "name": each,
                    "version": "1",
                    "inference_count": model.count,
                    "execution_count": model.count,
                    "inference_stats": {"success": {"count": model.count, "ns": 7}},
                }
                for each, model in self.models.items()
                if name in ("", each)
            ]
        }

    def index(self, only_ready: bool = False) -> list[Json]:
        return [
            {"name": name, "version": "1", "state": "READY" if model.is_ready else "UNAVAILABLE"}
            for name, model in self.models.items()
            if model.is_ready or not only_ready
        ]

    async def load(self, name: str, parameters: Json) -> None:
        self.loaded.append((name, parameters))
        model = self._model(name)
        model.is_ready = True
        model.max_batch_size = json.loads(parameters.get("config", "{}")).get("max_batch_size", 8)

    async def unload(self, name: str, with_dependents: bool = False) -> None:
        self._model(name).is_ready = False


def _check_inputs(request: InferRequest, specs: Sequence[TensorSpec]) -> None:
    for name in request.inputs:
        if name not in [spec.name for spec in specs]:
            raise RequestInvalid(f"unexpected inference input '{name}' for model '{request.model}'")
    for spec in specs:
        array = request.inputs.get(spec.name)
        if array is None:
            raise RequestInvalid(f"expected input '{spec.name}' for model '{request.model}'")
        if datatype_of(array.dtype) != spec.datatype:
            raise RequestInvalid(
                f"inference input '{spec.name}' data-type is '{datatype_of(array.dtype)}', but "
                f"model '{request.model}' expects '{spec.datatype}'"
            )
        if len(array.shape) != len(spec.shape) or any(
            size not in (-1, given) for size, given in zip(spec.shape, array.shape)
        ):
            raise RequestInvalid(
                f"unexpected shape for input '{spec.name}' for model '{request.model}'. "
                f"Expected {list(spec.shape)}, got {list(array.shape)}"
            )


def _accumulate(request: InferRequest, model: NumpyModel) -> Array:
    part = request.sequence
    if part is None:
        raise RequestInvalid(
            f"inference request to model '{request.model}' must specify a non-zero or non-empty "
            "correlation ID"
        )
    total: Any = request.inputs["INPUT"] + (0 if part.is_start else model.sequences[part.id])
    model.sequences[part.id] = total
    return np.asarray(total)
