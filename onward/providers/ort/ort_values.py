"""Tensors in and out of onnxruntime, without copies where the memory allows it."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnxruntime

from onward.graph.dtypes import BY_NUMBER, BY_ORT

# Types that onnxruntime only takes as bits of the same width: bfloat16 and four of the float8s.
_TYPES_AS_BITS = ("bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz")
_AS_BITS: dict[np.dtype[Any], tuple[int, str]] = {
    each.dtype: (each.number, f"uint{each.bits}")
    for each in map(BY_ORT.__getitem__, _TYPES_AS_BITS)
}
OrtValue = onnxruntime.OrtValue
_Bare = onnxruntime.capi.onnxruntime_pybind11_state.OrtValue  # what its wrapper holds
_ON_CPU, _ON_CUDA = 1, 2  # DLPack's numbers of the host's own memory and of CUDA's
_BFLOAT16_OF_TORCH = "torch.bfloat16"  # which torch does not give to numpy
_FROM_BITS = {number: dtype for dtype, (number, _) in _AS_BITS.items()}


def is_bits(kind: str) -> bool:
    """Whether onnxruntime and numpy share this type (in onnxruntime's words) as bits alone."""
    return "bfloat16" in kind or "float8" in kind


def is_packed(kind: str) -> bool:
    """Whether onnxruntime keeps this type in a form that it neither takes nor gives."""
    return any(word in kind for word in ("int4", "int2)", "float4", "float8e8m0"))


def to_ort(value: Any) -> Any:
    """A tensor of any engine as an OrtValue that shares its memory."""
    if isinstance(value, onnxruntime.OrtValue):
        return value
    if not isinstance(value, (np.ndarray, np.generic)) and hasattr(value, "__dlpack__"):
        return _from_dlpack(value)
    array = np.asarray(value)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype in _AS_BITS:
        number, bits = _AS_BITS[array.dtype]
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(bits), number)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


@functools.cache
def _reads_devices() -> bool:
    """Whether this onnxruntime can read what lies on a GPU; one that cannot would crash."""
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def device_of(feeds: Iterable[Any]) -> str:
    """Where onnxruntime should leave its results: "cuda" where a feed lies there, else "cpu"."""
    foreign = (feed for feed in feeds if not isinstance(feed, np.ndarray))
    tensors = [feed for feed in foreign if hasattr(feed, "__dlpack_device__")]
    on_device = any(int(tensor.__dlpack_device__()[0]) == _ON_CUDA for tensor in tensors)
    return "cuda" if on_device and _reads_devices() else "cpu"


def _from_dlpack(tensor: Any) -> Any:
    is_far = tensor.__dlpack_device__()[0] != _ON_CPU
    if is_far and not _reads_devices():
        tensor = tensor.cpu() if hasattr(tensor, "cpu") else to_host(tensor)
    if not hasattr(tensor, "is_contiguous"):  # of another library than torch
        stays = is_far and _reads_devices()
        return OrtValue.from_dlpack(tensor) if stays else to_ort(to_host(tensor))
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    tensor = tensor.detach()
    if str(tensor.dtype) == "torch.bool":  # onnxruntime's DLPack knows bools as bytes alone
        return OrtValue(_Bare.from_dlpack(tensor.byte().__dlpack__(), True))
    return OrtValue.from_dlpack(tensor)


def to_host(tensor: Any) -> np.ndarray[Any, Any]:
    """A tensor of another library as numpy's, in the same memory where it lies on the host."""
    if hasattr(tensor, "detach"):  # torch's own, of a training step
        tensor = tensor.detach()
    if tensor.__dlpack_device__()[0] != _ON_CPU:
        tensor = tensor.cpu() if hasattr(tensor, "cpu") else np.from_dlpack(tensor, device="cpu")
    if str(getattr(tensor, "dtype", "")) == _BFLOAT16_OF_TORCH:
        return to_numpy(_from_dlpack(tensor))  # type: ignore[no-any-return]
    return np.asarray(tensor) if hasattr(tensor, "__array__") else np.from_dlpack(tensor)


def to_numpy(value: Any) -> Any:
    """An OrtValue (or what `run` returned, or a tensor of another library) as numpy."""
    if isinstance(value, (list, tuple)):
        return [to_numpy(item) for item in value]
    if value is None or isinstance(value, (np.ndarray, dict)):  # a map is a dict
        return value
    if not isinstance(value, onnxruntime.OrtValue):
        return to_host(value) if hasattr(value, "__dlpack__") else np.asarray(value)
    number = value.element_type() if value.is_tensor() else 0
    if number not in _FROM_BITS:
        return value.numpy()
    dtype = _FROM_BITS[number]
    memory = (ctypes.c_uint8 * value.tensor_size_in_bytes()).from_address(value.data_ptr())
    return np.frombuffer(memory, dtype=dtype).reshape(value.shape()).copy()


def dtype_of(element_type: Any) -> np.dtype[Any]:
    """A numpy type from numpy's or from ONNX's number of it."""
    if isinstance(element_type, int):
        return BY_NUMBER[element_type].dtype
    dtype: np.dtype[Any] = np.dtype(element_type)
    return dtype
