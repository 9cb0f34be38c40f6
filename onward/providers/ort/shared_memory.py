"""SharedMemory: several sessions share an arena, and hold equal weights once."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnxruntime

from onward.errors import OptionError

Array = np.ndarray[Any, Any]

_ALIGNMENT = 64  # bytes; as onnxruntime's own
_AS_REQUESTED = 1  # the arena grows by the requested bytes, and can shrink to nothing
_registering = threading.RLock()  # the registered arena is global until a session has taken it


class SharedMemory:
    """Memory for several sessions: give it to each as `SessionOptions.shared`.

    Weights with equal contents are held once, as long as a session uses them, and runs take their
    memory from one arena, which ends at `memory_limit` bytes. Weights
    are not packed for each session, which makes some matrix products slower.
    """

    def __init__(self, memory_limit: int | None = None) -> None:
        if memory_limit is not None:
            check_limit(memory_limit)
        self.memory_limit = memory_limit
        self._weights: weakref.WeakValueDictionary[bytes, SharedWeight] = (
            weakref.WeakValueDictionary()
        )
        self._lock = threading.Lock()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that sessions use now, each counted once."""
        return sum(held.array.nbytes for held in self._weights.values())

    def hold(self, weights: Mapping[str, Array]) -> dict[str, SharedWeight]:
        """These weights in shared memory: the same object for equal contents."""
        found = {}
        for name, array in weights.items():
            key = _digest(array)
            with self._lock:
                held = self._weights.get(key)
                if held is None:
                    held = self._weights[key] = SharedWeight(array)
            found[name] = held
        return found

    @contextmanager
    def arena(self, native: Any) -> Iterator[None]:
        """Let a session that opens inside this context use the shared arena."""
        with _registering:
            if _Registered.owner is not self:
                _register(self.memory_limit or 0, _AS_REQUESTED)  # 0: no limit
                _Registered.owner = self
            native.add_session_config_entry(_USE, "1")
            native.add_session_config_entry("session.disable_prepacking", "1")
            yield


class SharedWeight:
    """A copy of a weight, as a numpy array and as an OrtValue of the same memory."""

    def __init__(self, array: Array) -> None:
        self.array = _aligned(array)
        self.value = onnxruntime.OrtValue.ortvalue_from_numpy(self.array)


class _Registered:
    """The owner of the arena that is registered in this process; onnxruntime has one."""

    owner: SharedMemory | None = None


_USE = "session.use_env_allocators"


@contextmanager
def limited_arena(native: Any, limit: int) -> Iterator[None]:
    """Let a session that opens inside this context use a new arena of at most `limit` bytes."""
    with _registering:
        _register(limit)
        _Registered.owner = None
        native.add_session_config_entry(_USE, "1")
        yield


def check_limit(limit: int) -> None:
    if limit <= 0:
        raise OptionError(f"memory_limit must be a number of bytes above 0, not {limit}")


def _register(limit: int, growth: int = -1) -> None:
    info = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(info, onnxruntime.OrtArenaCfg(limit, growth, -1, -1))


def _digest(array: Array) -> bytes:
    """A hash of type, shape and contents."""
    digest = hashlib.blake2b(f"{array.dtype.str} {array.shape}".encode(), digest_size=32)
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()


def _aligned(array: Array) -> Array:
    """A read-only copy with the alignment that onnxruntime's kernels expect."""
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy: Array = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    copy.flags.writeable = False
    return copy
