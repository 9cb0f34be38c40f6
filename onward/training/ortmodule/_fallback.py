"""Fallback policies: which reasons let PyTorch run a module, and which are errors."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntFlag
from typing import Any

from onward.training.ortmodule._fallback_exceptions import (
    ORTModuleDeviceException,
    ORTModuleFallbackException,
    ORTModuleInitException,
    ORTModuleIOError,
    ORTModuleONNXModelException,
    ORTModuleTorchModelException,
    get_exception_as_string,
    wrap_exception,
)
from onward.training.ortmodule._logger import LOGGER, LogLevel


class _FallbackPolicy(IntFlag):
    """The reasons for which PyTorch runs a module; all others are errors.

    >>> policy = _FallbackPolicy.FALLBACK_UNSUPPORTED_DATA | _FallbackPolicy.FALLBACK_DISABLE
    >>> policy.is_set(_FallbackPolicy.FALLBACK_UNSUPPORTED_DATA)
    False
    """

    FALLBACK_DISABLE = 1
    FALLBACK_FORCE_TORCH_FORWARD = 2
    FALLBACK_FORCE_TORCH_BACKWARD = 4
    FALLBACK_UNSUPPORTED_DEVICE = 8
    FALLBACK_UNSUPPORTED_DATA = 16
    FALLBACK_UNSUPPORTED_TORCH_MODEL = 32
    FALLBACK_UNSUPPORTED_ONNX_MODEL = 64
    FALLBACK_BAD_INITIALIZATION = 128

    def is_set(self, policy: _FallbackPolicy) -> bool:
        """Whether a policy is in this one; none is if fallback is disabled."""
        return not self.is_disabled() and policy in self

    def is_disabled(self) -> bool:
        return _FallbackPolicy.FALLBACK_DISABLE in self


DEFAULT_POLICY = (
    _FallbackPolicy.FALLBACK_UNSUPPORTED_DEVICE
    | _FallbackPolicy.FALLBACK_UNSUPPORTED_DATA
    | _FallbackPolicy.FALLBACK_UNSUPPORTED_TORCH_MODEL
    | _FallbackPolicy.FALLBACK_UNSUPPORTED_ONNX_MODEL
)
_ANY: set[type[Exception]] = {
    ORTModuleFallbackException,
    ORTModuleDeviceException,
    ORTModuleIOError,
    ORTModuleTorchModelException,
    ORTModuleONNXModelException,
}
_REASONS: dict[_FallbackPolicy, set[type[Exception]]] = {
    _FallbackPolicy.FALLBACK_FORCE_TORCH_FORWARD: _ANY,
    _FallbackPolicy.FALLBACK_FORCE_TORCH_BACKWARD: _ANY,
    _FallbackPolicy.FALLBACK_UNSUPPORTED_DEVICE: {ORTModuleDeviceException},
    _FallbackPolicy.FALLBACK_UNSUPPORTED_DATA: {ORTModuleIOError},
    _FallbackPolicy.FALLBACK_UNSUPPORTED_TORCH_MODEL: {ORTModuleTorchModelException},
    _FallbackPolicy.FALLBACK_UNSUPPORTED_ONNX_MODEL: {ORTModuleONNXModelException},
    _FallbackPolicy.FALLBACK_BAD_INITIALIZATION: {
        ORTModuleInitException,
        ORTModuleTorchModelException,
    },
}


class _FallbackManager:
    """Keeps the reason for which PyTorch runs a module; raises one that the policy does not allow.

    With `retry`, each call tries the captured graphs again.
    """

    def __init__(
        self, pytorch_module: Callable[..., Any], policy: _FallbackPolicy, retry: bool
    ) -> None:
        self._module, self.policy, self.retry = pytorch_module, policy, retry
        self.policy_exception_map = {each.value: kinds for each, kinds in _REASONS.items()}
        self._exception: Exception | None = None
        self._raised_fallback_exception = False  # whether it was logged

    def handle_exception(
        self,
        exception: Exception,
        log_level: LogLevel,
        override_policy: _FallbackPolicy | None = None,
    ) -> None:
        """Keep an exception that the policy allows; raise any other."""
        for policy, kinds in _REASONS.items():
            asked = override_policy is None or policy == override_policy
            if asked and self.policy.is_set(policy) and type(exception) in kinds:
                self._exception = exception
                self._log(exception, log_level)
                return
        raise exception

    def _log(self, exception: Exception, log_level: LogLevel) -> None:
        if log_level > LogLevel.WARNING or self._raised_fallback_exception:
            return
        self._raised_fallback_exception = not self.retry
        kind = type(exception).__name__
        LOGGER.warning("Fallback to PyTorch due to exception %s: %s", kind, exception)
        LOGGER.debug("%s", get_exception_as_string(exception))

    def is_pending(self) -> bool:
        """Whether PyTorch runs the module."""
        return self._exception is not None

    def clear_for_retry(self) -> None:
        """Let the next call try the captured graphs again, if it is asked for."""
        if self.retry:
            self._exception = None

    def fallback(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call in PyTorch."""
        self.clear_for_retry()
        return self._module(*args, **kwargs)


__all__ = [
    "DEFAULT_POLICY",
    "ORTModuleDeviceException",
    "ORTModuleFallbackException",
    "ORTModuleIOError",
    "ORTModuleInitException",
    "ORTModuleONNXModelException",
    "ORTModuleTorchModelException",
    "_FallbackManager",
    "_FallbackPolicy",
    "get_exception_as_string",
    "wrap_exception",
]
