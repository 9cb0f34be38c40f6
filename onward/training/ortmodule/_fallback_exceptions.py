"""Why a module, or a call of it, cannot run on captured graphs: onnxruntime.training's classes."""

from __future__ import annotations

import traceback
from typing import TypeVar

from onward.errors import OnwardError


class ORTModuleFallbackException(OnwardError, RuntimeError):
    """The module, or the call, must run in PyTorch."""


class ORTModuleInitException(ORTModuleFallbackException):
    """What ORTModule needs is missing."""


class ORTModuleDeviceException(ORTModuleFallbackException):
    """Tensors are on devices that do not fit."""


class ORTModuleIOError(ORTModuleFallbackException):
    """An argument or a result is not made of tensors and constants."""


class ORTModuleTorchModelException(ORTModuleFallbackException):
    """The module cannot be wrapped, such as nn.DataParallel."""


class ORTModuleONNXModelException(ORTModuleFallbackException):
    """The module cannot be captured, differentiated or compiled."""


Raised = TypeVar("Raised", bound=ORTModuleFallbackException)


def wrap_exception(new_exception: type[Raised], raised_exception: BaseException) -> Raised:
    """An exception of a class, with another one as its message and its cause.

    >>> wrap_exception(ORTModuleIOError, ValueError("a set is not supported"))
    ORTModuleIOError(ValueError('a set is not supported'))
    """
    found = new_exception(raised_exception)
    found.__cause__ = raised_exception
    return found


def get_exception_as_string(exception: BaseException) -> str:
    """An exception with its traceback, as Python prints it."""
    return "".join(traceback.format_exception(exception))
