"""Binding: inputs and outputs bound before a run, under the names of onnxruntime's IOBinding."""

from __future__ import annotations

import ctypes
from abc import ABC
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.errors import FeedError, OptionError
from onward.lazy import LazyModule
from onward.message_text import suggest_names
from onward.providers.ort.ort_values import OrtValue, dtype_of, to_numpy, to_ort
from onward.providers.ort.reexports import NativeBinding

if TYPE_CHECKING:
    from onward.providers.torch import tensors as torch_tensors
else:  # loaded when an output is bound to a torch tensor
    torch_tensors = LazyModule("onward.providers.torch.tensors")


class Binding:
    """The buffers of a run, for models that several providers share."""

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._known_inputs, self._known_outputs = list(inputs), list(outputs)
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}  # name: where to write, or None for new memory
        self._on_device: set[str] = set()  # outputs that stay where they are computed
        self._results: list[Any] = []

    # -- inputs --------------------------------------------------------------------------------

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray[Any, Any]) -> None:
        """Read an input from a numpy array."""
        self._inputs[self._input(name)] = arr_on_cpu

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Any,
        buffer_ptr: int,
    ) -> None:
        """Read an input from memory at an address."""
        self._inputs[self._input(name)] = _array_at(device_type, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Read an input from an OrtValue, or from any DLPack tensor."""
        self._inputs[self._input(name)] = ortvalue

    def synchronize_inputs(self) -> None:
        """Nothing to wait for: inputs are read when the run starts."""

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    # -- outputs -------------------------------------------------------------------------------

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Any = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Write an output to memory at an address, or to new memory.

        On another device than "cpu", new memory is where the provider computes.
        """
        target = None
        if buffer_ptr is not None:
            target = _array_at(device_type, element_type, shape, buffer_ptr)
        self._outputs[self._output(name)] = target
        self._mark(name, on_device=device_type != "cpu")

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Write an output into an OrtValue, or into a torch tensor on any device."""
        is_torch = hasattr(ortvalue, "copy_")
        if not is_torch and not isinstance(ortvalue, (OrtValue, np.ndarray)):
            raise OptionError(
                f"output {name!r} cannot be written into a {type(ortvalue).__name__}\n"
                "bind an OrtValue or a torch.Tensor, or memory with bind_output"
            )
        self._outputs[self._output(name)] = ortvalue
        self._mark(name, on_device=is_torch)

    def synchronize_outputs(self) -> None:
        """Nothing to wait for: a run returns when its outputs are written."""

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._on_device.clear()

    def get_outputs(self) -> list[Any]:
        """The outputs of the last run, as OrtValues.

        Those that were bound to another device, or to a tensor, are DLPack tensors.
        """
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run, as numpy."""
        return [np.copy(to_numpy(value)) for value in self._results]

    # -- for the session -----------------------------------------------------------------------

    def feeds(self) -> dict[str, Any]:
        return dict(self._inputs)

    def output_names(self) -> list[str]:
        return list(self._outputs)

    def is_on_device(self, name: str) -> bool:
        """Whether an output stays where the provider computes it."""
        return name in self._on_device

    def receive(self, names: Sequence[str], results: Sequence[Any]) -> None:
        """Take a run's results; copy those whose outputs are bound to memory."""
        self._results = []
        for name, result in zip(names, results, strict=True):
            target = self._outputs.get(name)
            if target is None:
                self._results.append(result)
                continue
            if hasattr(target, "copy_"):
                self._copy(name, target, result)
                continue
            array = to_numpy(result)
            if isinstance(target, np.ndarray):
                if target.shape != array.shape or target.dtype != array.dtype:
                    raise FeedError(
                        f"output {name!r} is {array.dtype} {array.shape}, "
                        f"bound to {target.dtype} {target.shape}"
                    )
                target[...] = array
                self._results.append(to_ort(target))
            else:
                target.update_inplace(array)
                self._results.append(target)

    def _copy(self, name: str, target: Any, result: Any) -> None:
        """Copy a result into a torch tensor."""
        tensor = torch_tensors.as_torch(result)
        if target.shape != tensor.shape or target.dtype != tensor.dtype:
            raise FeedError(
                f"output {name!r} is {tensor.dtype} {tuple(tensor.shape)}, "
                f"bound to {target.dtype} {tuple(target.shape)}"
            )
        torch_tensors.copy_into(target, tensor)
        self._results.append(target)

    def _mark(self, name: str, *, on_device: bool) -> None:
        self._on_device.discard(name)
        if on_device:
            self._on_device.add(name)

    def _input(self, name: str) -> str:
        if name not in self._known_inputs:
            hint = suggest_names(name, self._known_inputs, "the model takes")
            raise FeedError(f"no input {name!r}; {hint}")
        return name

    def _output(self, name: str) -> str:
        if name not in self._known_outputs:
            hint = suggest_names(name, self._known_outputs, "the model gives")
            raise FeedError(f"no output {name!r}; {hint}")
        return name


class IOBinding(ABC):  # noqa: B024 (only for isinstance)
    """`session.io_binding()` as a class."""

    def __new__(cls, session: Any) -> Any:
        return session.io_binding()


IOBinding.register(Binding)
IOBinding.register(NativeBinding)


def _array_at(
    device_type: str, element_type: Any, shape: Any, address: int
) -> np.ndarray[Any, Any]:
    """The array at an address."""
    if device_type != "cpu":
        raise OptionError(
            f"binding by address reads cpu memory, not {device_type}\n"
            "bind the tensor itself with bind_ortvalue_input or bind_ortvalue_output"
        )
    dtype = dtype_of(element_type)
    count = int(np.prod(shape, dtype=np.int64))
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    array: np.ndarray[Any, Any] = np.ctypeslib.as_array(memory).view(dtype)
    return array.reshape(tuple(shape))
