"""Results as tensors of the feeds' library, without a copy (DLPack)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.lazy import LazyModule
from onward.providers.ort.ort_values import OrtValue, to_numpy, to_ort

if TYPE_CHECKING:
    from onward.providers.torch import tensors as torch_tensors
else:  # loaded for torch feeds
    torch_tensors = LazyModule("onward.providers.torch.tensors")

Reader = Callable[[Any], Any]


def reader_for(feeds: Any) -> Reader | None:
    """A function that converts results to the feeds' library; None for numpy.

    The first feed of another library decides. Text, maps and empty optionals stay as they are.
    """
    for feed in feeds.values() if isinstance(feeds, Mapping) else ():
        first = feed[0] if isinstance(feed, (list, tuple)) and feed else feed
        if hasattr(first, "__dlpack__") and not isinstance(first, (np.ndarray, np.generic)):
            return _map_sequences(_from_dlpack(first))
    return None


def _from_dlpack(tensor: Any) -> Reader:
    """A function that converts any tensor to the library of this one."""
    if isinstance(tensor, OrtValue):
        return to_ort
    libraries = [kind.__module__.partition(".")[0] for kind in type(tensor).__mro__]
    if "torch" in libraries:  # a user's class may be a subclass of torch's
        return torch_tensors.as_torch
    if hasattr(tensor, "__array_namespace__"):
        read = tensor.__array_namespace__().from_dlpack
    else:
        read = getattr(sys.modules.get(libraries[0]), "from_dlpack", None)
    return (lambda result: result) if read is None else lambda result: read(_exchangeable(result))


def _exchangeable(result: Any) -> Any:
    """A result whose DLPack has its type: an OrtValue exports bool as bytes."""
    is_bool = isinstance(result, OrtValue) and result.data_type() == "tensor(bool)"
    return to_numpy(result) if is_bool else result


def _map_sequences(read: Reader) -> Reader:
    """Apply `read` to the tensors of sequences, too; other results stay as they are."""

    def read_result(result: Any) -> Any:
        if isinstance(result, list):
            return [read_result(item) for item in result]
        if not hasattr(result, "__dlpack__") or getattr(result, "dtype", None) == np.object_:
            return result
        return read(result)

    return read_result
