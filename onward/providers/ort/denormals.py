"""Denormals: numbers too small for a float's usual form, taken for zero while a graph trains.

A moment that gets no more gradients decays to such numbers and stays there; x86 processors are
slow with them. onnxruntime's own setting covers the threads of a session; the thread that calls it,
which computes too, is set here for the time of a run and put back, so that nobody else's
arithmetic changes. Elsewhere nothing is set.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from dataclasses import replace
from types import TracebackType

from onward.providers.options import SessionOptions

FLUSH = "session.set_denormal_as_zero"

_WORDS = 8  # of C's fenv_t on x86-64 Linux: the last is the register MXCSR
_ZEROES = 0x8040  # its bits "flush to zero" and "denormals are zero"


class _Environment:
    """The floating-point settings of the calling thread, by C's fegetenv and fesetenv."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._get, self._set = library.fegetenv, library.fesetenv
        self._old, self._new = (ctypes.c_uint32 * _WORDS)(), (ctypes.c_uint32 * _WORDS)()

    def __enter__(self) -> None:
        self._get(self._old)
        ctypes.memmove(self._new, self._old, ctypes.sizeof(self._old))
        self._new[_WORDS - 1] |= _ZEROES
        self._set(self._new)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._set(self._old)


def matter() -> bool:
    """Whether denormals are slow on this machine, and can be taken for zero."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and _has_functions()


def _has_functions() -> bool:
    try:
        library = ctypes.CDLL(None)
        return hasattr(library, "fegetenv") and hasattr(library, "fesetenv")
    except OSError:
        return False


def without(options: SessionOptions) -> SessionOptions:
    """The same options, with denormals taken for zero where they matter and nobody said else."""
    if options.native is not None or FLUSH in options.config_entries or not matter():
        return options
    return replace(options, config_entries={**options.config_entries, FLUSH: "1"})


def flushing(options: SessionOptions) -> _Environment | None:
    """What to enter for a run of a session with these options; None: nothing."""
    asked = options.config_entries.get(FLUSH) == "1"
    return _Environment() if asked and matter() else None
