"""Convert tensors to and from torch, without copies where the memory allows it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack

from onward.graph.dtypes import ELEMENT_TYPES
from onward.providers.torch.dtypes import DTYPES

# Feeds are read, never written: torch's warning about read-only arrays is not about us. It comes
# once in a process, so it is let out here.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(b"read only", np.uint8))

# numpy types that torch cannot read -> (a type of the same width both know, torch's type)
_VIEWED: dict[np.dtype[Any], tuple[type, torch.dtype]] = {
    each.dtype: (np.int16 if each.bits == 16 else np.uint8, DTYPES[each.number])
    for each in ELEMENT_TYPES
    if not each.is_in_numpy and not each.held_as
}
# numpy types that torch lacks -> the wider type that holds them by value
_WIDENED = {each.dtype: np.dtype(each.held_as) for each in ELEMENT_TYPES if each.held_as}
_BOOL = 9
_FLOAT8 = {number: DTYPES[number] for number in (17, 18, 19, 20)}
_VIEWED_BACK = {theirs: (ours, numpy_type) for numpy_type, (ours, theirs) in _VIEWED.items()}


def to_torch(value: Any, device: torch.device) -> Any:
    """A feed (numpy, torch, any DLPack object, a list of them, None) as torch tensors."""
    if value is None or isinstance(value, torch.Tensor):
        return value if value is None else value.to(device)
    if isinstance(value, (list, tuple)):
        return [to_torch(item, device) for item in value]
    return as_torch(value).to(device)


def as_torch(value: Any) -> torch.Tensor:
    """A tensor of any library as a torch tensor, on its device."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (np.ndarray, np.generic)) or not hasattr(value, "__dlpack__"):
        return _from_numpy(np.asarray(value))
    return _from_dlpack(value)


def to_normal_tensor(value: Any, *, copied: bool = False) -> Any:
    """An inference tensor of torch as a normal one, which autograd may save and users may write.

    It shares the result's memory, unless `copied`.
    """
    if isinstance(value, list):
        return [to_normal_tensor(item, copied=copied) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.detach().resolve_conj().resolve_neg()
    if copied:
        return tensor.clone()
    if tensor.is_floating_point() and tensor.itemsize == 1:  # older torch's DLPack has no float8
        bits = torch.from_dlpack(tensor.view(torch.uint8))  # type: ignore[attr-defined]
        return bits.view(tensor.dtype)
    return torch.from_dlpack(tensor)  # type: ignore[attr-defined]


def copy_into(target: torch.Tensor, value: Any) -> None:
    """Copy a tensor of any library into a torch tensor, on the device where both are on one."""
    with torch.no_grad():
        target.copy_(as_torch(value))


def _from_dlpack(value: Any) -> torch.Tensor:
    """A torch tensor by DLPack; an OrtValue exports bool and float8 as bytes: read its type."""
    number = value.element_type() if hasattr(value, "element_type") else None
    if number in _FLOAT8:
        return torch.from_numpy(value.numpy()).view(_FLOAT8[number])
    tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(value)
    return tensor.view(torch.bool) if number == _BOOL else tensor


def _from_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if not array.flags.c_contiguous:  # torch refuses negative strides
        array = np.ascontiguousarray(array).reshape(array.shape)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype in _VIEWED:
        ours, theirs = _VIEWED[array.dtype]
        return torch.from_numpy(array.view(ours)).view(theirs)
    if array.dtype in _WIDENED:
        array = array.astype(_WIDENED[array.dtype])
    return torch.from_numpy(array)


def to_numpy(value: Any, dtype: np.dtype[Any] | None = None) -> Any:
    """A result as numpy; `dtype` is the narrow type of values that torch holds in a wider one."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [to_numpy(item, dtype) for item in value]
    if not isinstance(value, torch.Tensor):  # a shape that stayed a Python number
        return np.asarray(value, dtype=np.int64)
    tensor = value.detach() if value.requires_grad else value
    tensor = tensor if tensor.is_cpu else tensor.cpu()
    if tensor.dtype in _VIEWED_BACK:
        ours, numpy_type = _VIEWED_BACK[tensor.dtype]
        bits = torch.int16 if ours is np.int16 else torch.uint8
        return tensor.contiguous().view(bits).numpy().view(numpy_type)
    if tensor.is_complex() or tensor.is_neg():  # conjugates and negations that wait to be computed
        tensor = tensor.resolve_conj().resolve_neg()
    array = tensor.numpy()
    return array.astype(dtype) if dtype is not None and dtype in _WIDENED else array
