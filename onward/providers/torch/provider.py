"""TorchExecutionProvider (eager ATen) and InductorExecutionProvider (the same graph, compiled)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onward.providers.torch.lower import Lowered, lower
from onward.providers.torch.table import HOST, KERNELS
from onward.providers.torch.tensors import to_numpy, to_torch
from onward.providers.torch.types import DTYPES


class TorchProvider:
    """Runs a graph operator by operator in torch, or compiled by Inductor."""

    def __init__(self, name: str, *, compiled: bool, device: str) -> None:
        self.name, self._compiled = name, compiled
        self._device = torch.device(device)

    def supports(self, node: ir.Node, opsets: dict[str, int]) -> bool:
        opset = opsets.get(node.domain, 1)
        if KERNELS.find(node.domain, node.op_type, opset) is None:
            return False
        values = [value for value in (*node.inputs, *node.outputs) if value is not None]
        if not all(value.dtype is None or int(value.dtype) in DTYPES for value in values):
            return False
        bodies = [a.as_graph() for a in node.attributes.values() if a.type is ir.AttributeType.GRAPH]
        return all(self.supports(inner, opsets) for body in bodies for inner in body)

    def compile(self, model: ir.Model) -> TorchExecutable:
        module = lower(model.graph, KERNELS, HOST, self._device)
        return TorchExecutable(module, self._device, self._compiled)


class TorchExecutable:
    """A lowered graph on a device."""

    def __init__(self, module: Lowered, device: torch.device, compiled: bool) -> None:
        self.module, self._device = module, device
        self._call = torch.compile(module) if compiled else module.forward

    @torch.inference_mode()
    def run(self, tensors: Sequence[Any]) -> Sequence[Any]:
        device = self._device
        return self._call(*[to_torch(tensor, device) for tensor in tensors])  # type: ignore[no-any-return]

    def to_numpy(self, tensor: Any, dtype: np.dtype[Any] | None) -> Any:
        return to_numpy(tensor, dtype)
