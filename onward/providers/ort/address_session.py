"""AddressSession: an onnxruntime session that reads its inputs by address, without copies.

Needs onnxruntime and numpy only; the owner of the tensors (torch) describes where they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import onnxruntime

from onward.providers.options import SessionOptions
from onward.providers.ort import session
from onward.providers.ort.bound_session import CPU, open_native
from onward.providers.ort.denormals import flush_context


class Place(NamedTuple):
    """Where a contiguous tensor is in memory."""

    type_number: int  # ONNX's
    shape: tuple[int, ...]
    address: int


class AddressSession:
    """A session of stock onnxruntime whose inputs are given by their places in memory.

    The memory of outputs is new in each run. Threads may share a session: runs are one after the
    other.
    """

    def __init__(self, model: bytes, options: SessionOptions | None = None) -> None:
        given = SessionOptions.of(options)
        self._native = open_native(model, given, CPU)
        self._flush = flush_context(given)
        self._binding = self._native.io_binding()._iobinding
        self._device = onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()
        self.inputs = [argument.name for argument in self._native.get_inputs()]
        self.outputs = [argument.name for argument in self._native.get_outputs()]
        self._places: list[Place | None] = [None] * len(self.inputs)
        self._lock = threading.Lock()

    def run(self, places: Sequence[Place], to_tensor: Callable[[Any], Any]) -> list[Any]:
        """Run once; outputs in order, each made by `to_tensor` from a DLPack capsule.

        DLPack has no type of its own for bool before version 1: such outputs are bytes.
        """
        with self._lock:
            return self._run(places, to_tensor)

    def _run(self, places: Sequence[Place], to_tensor: Callable[[Any], Any]) -> list[Any]:
        binding, device, old = self._binding, self._device, self._places
        for i, place in enumerate(places):
            if place != old[i]:
                binding.bind_input(self.inputs[i], device, *place)
                old[i] = place
        for name in self.outputs:  # else the results of the last run would be overwritten
            binding.bind_output(name, device)
        try:
            if self._flush is None:
                self._native._sess.run_with_iobinding(binding, None)
            else:
                with self._flush:
                    self._native._sess.run_with_iobinding(binding, None)
        except Exception as error:
            raise session.typed_error(error, None) from error
        found = list(binding.get_outputs().to_dlpacks(to_tensor))
        binding.clear_binding_outputs()
        return found
