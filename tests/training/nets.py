"""Small models to train, and a training loop with only onnxruntime and numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from onward.checkpoints import file_contents

Array = np.ndarray[Any, Any]

MLP = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")


def float_info(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    weights: dict[str, Array],
    *,
    opset: int = 17,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, tensors)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def mlp(seed: int = 0, dtype: Any = np.float32, opset: int = 17) -> onnx.ModelProto:
    """input (batch, 4) -> output (batch, 3), one hidden layer of 5: torch's names."""
    rng = np.random.default_rng(seed)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    shapes = {"fc1.weight": (5, 4), "fc1.bias": (5,), "fc2.weight": (3, 5), "fc2.bias": (3,)}
    weights = {n: (rng.normal(size=s) / 2).astype(dtype) for n, s in shapes.items()}
    nodes = [
        helper.make_node("Gemm", ["input", "fc1.weight", "fc1.bias"], ["hidden"], transB=1),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "fc2.weight", "fc2.bias"], ["output"], transB=1),
    ]
    x, y = float_info("input", ["batch", 4], kind), float_info("output", ["batch", 3], kind)
    return model_of(nodes, [x], [y], weights, opset=opset)


def two_outputs() -> onnx.ModelProto:
    """x (batch, 4) -> a (batch, 2) and b (batch, 2)."""
    rng = np.random.default_rng(1)
    weights = {name: rng.normal(size=(4, 2)).astype(np.float32) for name in ("wa", "wb")}
    nodes = [
        helper.make_node("MatMul", ["x", "wa"], ["a"]),
        helper.make_node("MatMul", ["x", "wb"], ["b"]),
    ]
    outputs = [float_info("a", ["batch", 2]), float_info("b", ["batch", 2])]
    return model_of(nodes, [float_info("x", ["batch", 4])], outputs, weights)


def convolutional(*, training_mode: int = 1, dropout: bool = False) -> onnx.ModelProto:
    """image (batch, 1, 6, 6) -> output (batch, 3): convolution, batch norm, dropout, linear."""
    rng = np.random.default_rng(2)
    weights = {
        "conv.weight": rng.normal(size=(4, 1, 3, 3)).astype(np.float32),
        "bn.weight": np.ones(4, np.float32),
        "bn.bias": np.zeros(4, np.float32),
        "bn.running_mean": np.zeros(4, np.float32),
        "bn.running_var": np.ones(4, np.float32),
        "fc.weight": (rng.normal(size=(3, 64)) / 8).astype(np.float32),
        "fc.bias": np.zeros(3, np.float32),
    }
    norm = [name for name in weights if name.startswith("bn.")]
    made = ["normed", "new_mean", "new_var"] if training_mode else ["normed"]
    nodes = [
        helper.make_node("Conv", ["image", "conv.weight"], ["convolved"]),
        helper.make_node(
            "BatchNormalization", ["convolved", *norm], made, training_mode=training_mode
        ),
        helper.make_node("Relu", ["normed"], ["active"]),
        helper.make_node("Flatten", ["active"], ["flat"]),
    ]
    last = "flat"
    if dropout:
        weights |= {"ratio": np.array(0.5, np.float32), "on": np.array(True)}
        nodes.append(helper.make_node("Dropout", ["flat", "ratio", "on"], ["kept"]))
        last = "kept"
    nodes.append(helper.make_node("Gemm", [last, "fc.weight", "fc.bias"], ["output"], transB=1))
    x, y = float_info("image", ["batch", 1, 6, 6]), float_info("output", ["batch", 3])
    return model_of(nodes, [x], [y], weights)


def opened(model: onnx.ModelProto | Path) -> Any:
    """A bare onnxruntime session."""
    data = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def names(values: Any) -> list[str]:
    return [value.name for value in values]


def arrays(tensors: Any) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}


class Loop:
    """Trains from artifacts with bare onnxruntime sessions and numpy."""

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self.training = opened(folder / f"{prefix}training_model.onnx")
        self.evaluation = opened(folder / f"{prefix}eval_model.onnx")
        self.optimizer = opened(folder / f"{prefix}optimizer_model.onnx")
        stored = file_contents.read(folder / f"{prefix}checkpoint").parameters
        self.parameters = {name: one.data for name, one in stored.items()}
        self.trained = [name for name, one in stored.items() if one.requires_grad]
        self.gradients: dict[str, Array] = {}
        self.slots: dict[str, list[Array]] = {}
        self.step = 0

    def loss(self, feeds: dict[str, Array], *, reset: bool = True) -> float:
        """One forward and backward; gradients are added unless reset."""
        given = {name: self._or_zeros(name) for name in self.trained}
        results = self._run(
            self.training,
            feeds
            | {f"{name}_grad.accumulation.buffer": given[name] for name in self.trained}
            | {"lazy_reset_grad": np.array([reset])},
        )
        for name in self.trained:
            self.gradients[name] = results[f"{name}_grad.accumulation.out"]
        for name in self.parameters:
            if f"{name}_updated" in results:
                self.parameters[name] = results[f"{name}_updated"]
        return float(next(iter(results.values())).item())

    def evaluate(self, feeds: dict[str, Array]) -> float:
        return float(next(iter(self._run(self.evaluation, feeds).values())).item())

    def update(self, learning_rate: float) -> None:
        self.step += 1
        feeds: dict[str, Any] = {
            "learning_rate": np.array([learning_rate], np.float32),
            "step": np.array([self.step]),
            "params": [self.parameters[name] for name in self.trained],
            "gradients": [self.gradients[name] for name in self.trained],
        }
        for value in self.optimizer.get_inputs()[4:]:
            zeros = [np.zeros_like(each) for each in feeds["params"]]
            feeds[value.name] = self.slots.get(value.name, zeros)
        found = dict(zip(names(self.optimizer.get_outputs()), self.optimizer.run(None, feeds)))
        assert found["updated_flag"].tolist() == [True]
        self.parameters |= zip(self.trained, found["updated_params"])
        self.slots = {name: found[f"updated_{name}"] for name in feeds if name not in _OTHERS}

    def _or_zeros(self, name: str) -> Array:
        zeros = np.full_like(self.parameters[name], np.nan)  # not read after a reset
        return self.gradients.get(name, zeros)

    def _run(self, session: Any, feeds: dict[str, Array]) -> dict[str, Array]:
        wanted = names(session.get_inputs())
        given = {**self.parameters, **feeds}
        results = session.run(None, {name: given[name] for name in wanted})
        return dict(zip(names(session.get_outputs()), results))


_OTHERS = ("learning_rate", "step", "params", "gradients")
