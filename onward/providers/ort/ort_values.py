"""Convert tensors to and from OrtValues, without copies where possible."""

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
_NativeValue = onnxruntime.capi.onnxruntime_pybind11_state.OrtValue  # OrtValue wraps one
_ON_CPU, _ON_CUDA = 1, 2  # DLPack's device types
_BFLOAT16_OF_TORCH = "torch.bfloat16"  # torch cannot convert it to numpy
_FROM_BITS = {number: dtype for dtype, (number, _) in _AS_BITS.items()}


def is_bits(kind: str) -> bool:
    """Whether onnxruntime and numpy exchange this type as raw bits only."""
    return "bfloat16" in kind or "float8" in kind


def is_packed(kind: str) -> bool:
    """Whether onnxruntime packs this type in a way that it neither accepts nor returns."""
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
    """Whether this onnxruntime can read GPU memory; one that cannot would crash."""
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def device_of(feeds: Iterable[Any]) -> str:
    """The device for onnxruntime's results: "cuda" if a feed is there, else "cpu"."""
    foreign = (feed for feed in feeds if not isinstance(feed, np.ndarray))
    tensors = [feed for feed in foreign if hasattr(feed, "__dlpack_device__")]
    on_device = any(int(tensor.__dlpack_device__()[0]) == _ON_CUDA for tensor in tensors)
    return "cuda" if on_device and _reads_devices() else "cpu"


def _from_dlpack(tensor: Any) -> Any:
    is_remote = tensor.__dlpack_device__()[0] != _ON_CPU
    if is_remote and not _reads_devices():
        tensor = tensor.cpu() if hasattr(tensor, "cpu") else to_host(tensor)
    if not hasattr(tensor, "is_contiguous"):  # not torch
        stays = is_remote and _reads_devices()
        return OrtValue.from_dlpack(tensor) if stays else to_ort(to_host(tensor))
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    tensor = tensor.detach()
    if str(tensor.dtype) == "torch.bool":  # onnxruntime's DLPack supports bools as bytes only
        return OrtValue(_NativeValue.from_dlpack(tensor.byte().__dlpack__(), True))
    return OrtValue.from_dlpack(tensor)


def to_host(tensor: Any) -> np.ndarray[Any, Any]:
    """A tensor of another library as a numpy array; without a copy if it is on the host."""
    if hasattr(tensor, "detach"):  # torch, with a gradient
        tensor = tensor.detach()
    if tensor.__dlpack_device__()[0] != _ON_CPU:
        tensor = tensor.cpu() if hasattr(tensor, "cpu") else np.from_dlpack(tensor, device="cpu")
    if str(getattr(tensor, "dtype", "")) == _BFLOAT16_OF_TORCH:
        return to_numpy(_from_dlpack(tensor))  # type: ignore[no-any-return]
    return np.asarray(tensor) if hasattr(tensor, "__array__") else np.from_dlpack(tensor)


def to_numpy(value: Any) -> Any:
    """An OrtValue, a result of `run` or a tensor of another library as numpy."""
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
    """A numpy type from a numpy type or ONNX's number of it."""
    if isinstance(element_type, int):
        return BY_NUMBER[element_type].dtype
    dtype: np.dtype[Any] = np.dtype(element_type)
    return dtype
