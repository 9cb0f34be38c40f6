"""Instances for tests: a function, one that waits to be let through, and a session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

import onward
from onward.serving.requests import Array, TensorSpec

Function = Callable[..., dict[str, Array]]


class FunctionInstance:
    """An instance over a function of the feeds, which keeps what it ran."""

    def __init__(
        self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], function: Function
    ) -> None:
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.function = function
        self.ran: list[dict[str, Array]] = []
        self.is_closed = False

    def run(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        self.ran.append(dict(feeds))
        found = self.function(**feeds)
        return {name: found[name] for name in outputs or found}

    def close(self) -> None:
        self.is_closed = True


class GatedInstance:
    """An instance that starts to run only after `gate` was set, and says when it waits for it."""

    def __init__(self, instance: FunctionInstance) -> None:
        self.inputs, self.outputs = instance.inputs, instance.outputs
        self.instance = instance
        self.gate, self.is_running = threading.Event(), threading.Event()
        self.gate.set()
        self.interrupts = 0
        self.is_compiling = False

    def interrupt(self) -> None:
        self.interrupts += 1

    def run(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        self.is_running.set()
        assert self.gate.wait(60)
        return self.instance.run(feeds, outputs)

    def close(self) -> None:
        self.instance.close()


class SessionInstance:
    """An instance over onward.InferenceSession, for float32, int64 and string tensors."""

    def __init__(self, model: ir.Model) -> None:
        self.session = onward.InferenceSession(model)
        self.inputs = [_spec(arg) for arg in self.session.get_inputs()]
        self.outputs = [_spec(arg) for arg in self.session.get_outputs()]

    def run(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        names = list(outputs or [spec.name for spec in self.outputs])
        return dict(zip(names, self.session.run(names, dict(feeds))))

    def close(self) -> None:
        self.session.close()


def doubler(**changes: Any) -> FunctionInstance:
    """y = 2 x, of shape (batch, 2)."""
    inputs = [TensorSpec("x", "FP32", (-1, 2), ("batch", ""))]
    outputs = [TensorSpec("y", "FP32", (-1, 2), ("batch", ""))]
    settings = {"inputs": inputs, "outputs": outputs, "function": lambda x: {"y": 2 * x}}
    return FunctionInstance(**{**settings, **changes})


def _spec(arg: Any) -> TensorSpec:
    kinds = {"tensor(float)": "FP32", "tensor(int64)": "INT64", "tensor(string)": "BYTES"}
    shape = tuple(size if isinstance(size, int) else -1 for size in arg.shape)
    axes = tuple("" if isinstance(size, int) or not size else size for size in arg.shape)
    return TensorSpec(arg.name, kinds[arg.type], shape, axes)
