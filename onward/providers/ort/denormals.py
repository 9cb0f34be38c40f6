"""Flush denormals (numbers below the normal range of a float) to zero while a graph trains.

A moment without further gradients decays to denormals and stays there, and x86 processors compute
slowly with them. onnxruntime's own setting covers the threads of its session; the calling thread,
which computes, too, is set here during a run and restored after it. On other processors nothing
is set.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from dataclasses import replace
from types import TracebackType

from onward.providers.options import SessionOptions

FLUSH = "session.set_denormal_as_zero"

_WORDS = 8  # 32-bit words of C's fenv_t on x86-64 Linux; the last is the register MXCSR
_FLUSH_BITS = 0x8040  # its bits "flush to zero" and "denormals are zero"


class _FlushedDenormals:
    """Flushes denormals in the calling thread while entered, by C's fegetenv and fesetenv."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._get, self._set = library.fegetenv, library.fesetenv
        self._old, self._new = (ctypes.c_uint32 * _WORDS)(), (ctypes.c_uint32 * _WORDS)()

    def __enter__(self) -> None:
        self._get(self._old)
        ctypes.memmove(self._new, self._old, ctypes.sizeof(self._old))
        self._new[_WORDS - 1] |= _FLUSH_BITS
        self._set(self._new)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._set(self._old)


def can_flush() -> bool:
    """Whether denormals are slow on this machine, and the calling thread can flush them."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and _has_functions()


def _has_functions() -> bool:
    try:
        library = ctypes.CDLL(None)
        return hasattr(library, "fegetenv") and hasattr(library, "fesetenv")
    except OSError:
        return False


def flush_denormals(options: SessionOptions) -> SessionOptions:
    """Options that flush denormals where that helps, unless the user has set this option."""
    if options.native is not None or FLUSH in options.config_entries or not can_flush():
        return options
    return replace(options, config_entries={**options.config_entries, FLUSH: "1"})


def flush_context(options: SessionOptions) -> _FlushedDenormals | None:
    """A context that flushes denormals in the calling thread; None if the options do not ask."""
    asked = options.config_entries.get(FLUSH) == "1"
    return _FlushedDenormals() if asked and can_flush() else None
