"""ORTModule: onward.Module with onnxruntime.training's name, options and fallback policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any, NoReturn

from onward.errors import OptionTypeError
from onward.pytorch.captured_module import CapturedModule
from onward.pytorch.fallback import CannotCapture, Checkpointed, CustomFunction, UnsupportedData
from onward.pytorch.module import Module
from onward.pytorch.module_options import ModuleOptions
from onward.pytorch.ortmodule.call_checks import devices_of, is_data_parallel
from onward.pytorch.ortmodule.user_methods import find_overrides, find_user_methods
from onward.training.ortmodule._fallback import _FallbackManager, wrap_exception
from onward.training.ortmodule._fallback_exceptions import (
    ORTModuleDeviceException,
    ORTModuleFallbackException,
    ORTModuleIOError,
    ORTModuleONNXModelException,
    ORTModuleTorchModelException,
)
from onward.training.ortmodule._graph_execution_manager_factory import GraphExecutionManagerFactory
from onward.training.ortmodule._logger import LOGGER, set_log_level
from onward.training.ortmodule._torch_module_ort import TorchModuleORT
from onward.training.ortmodule.graph_optimizer_registry import call_graph_optimizers
from onward.training.ortmodule.options import DebugOptions, _RuntimeOptions
from onward.training.ortmodule.switches import report_unused_switches

_DATA_PARALLEL = (
    "ORTModule is not compatible with torch.nn.DataParallel. "
    "Please use torch.nn.parallel.DistributedDataParallel instead."
)
_REBUILT = ("_torch_module", "_fallback_manager", "_managers", "_user_methods")


class ORTModule(Module):
    """Wrap a PyTorch module: its forward and backward run on captured graphs.

    Args:
        module: the module to wrap; parameters, buffers, attributes and state_dict stay its own
        debug_options: what is logged, and whether graphs are written

    What cannot be captured runs in PyTorch, with a message in the log that says why. The
    environment variable ORTMODULE_FALLBACK_POLICY=FALLBACK_DISABLE makes it an error.

        from onward.training.ortmodule import ORTModule

        model = ORTModule(model)
        loss = model(inputs, labels)
        loss.backward()
    """

    def __init__(self, module: Any, debug_options: DebugOptions | None = None) -> None:
        if debug_options is not None and not isinstance(debug_options, DebugOptions):
            raise OptionTypeError(
                f"debug_options must be DebugOptions, not {type(debug_options).__name__}\n"
                "such as DebugOptions(log_level=LogLevel.INFO)"
            )
        debug = debug_options or DebugOptions()
        set_log_level(debug.logging.log_level)
        report_unused_switches()
        self.__dict__["_debug_options"] = debug
        self.__dict__["_runtime_options"] = _RuntimeOptions()
        super().__init__(module, ModuleOptions())

    def _set_options(self, debug: DebugOptions, runtime: Mapping[str, Any]) -> None:
        """Replace the debug options and some of the runtime options; the next call captures."""
        set_log_level(debug.logging.log_level)
        self.__dict__["_debug_options"] = debug
        self.__dict__["_runtime_options"] = replace(self._runtime_options, **runtime)
        self._wrap(self._wrapped)

    def _check(self, module: Any) -> None:
        if not is_data_parallel(module):
            super()._check(module)

    def _wrap(self, module: Any) -> None:
        runtime, level = self._runtime_options, self._debug_options.logging.log_level
        fallback = _FallbackManager(module, runtime.fallback_policy, runtime.fallback_retry)
        self.__dict__["_fallback_manager"] = fallback
        try:
            _check_module(module)
        except ORTModuleFallbackException as error:
            fallback.handle_exception(error, level)
        super()._wrap(module)
        managers = GraphExecutionManagerFactory(
            self._captured, self._debug_options, runtime, fallback
        )
        self.__dict__["_managers"] = managers
        self.__dict__["_torch_module"] = TorchModuleORT(module, managers)
        self._bind_user_methods(module)

    def _bind_user_methods(self, module: Any) -> None:
        """Bind the module's own methods to this one: what they call runs on captured graphs."""
        ours = dir(type(self))
        methods = find_user_methods(module)
        bound = {name: MethodType(f, self) for name, f in methods.items() if name not in ours}
        self.__dict__["_user_methods"] = tuple(bound)
        self.__dict__.update(bound)
        owned = [name for name in module.__dict__ if name in _REBUILT]
        taken = [name for name in methods if name in ours]
        for name in (*owned, *find_overrides(module), *taken):
            LOGGER.warning("User Module's %s collides with ORTModule's attribute name.", name)

    # -- calls ---------------------------------------------------------------------------------

    def _capture_calls(self, module: Any) -> CapturedModule:
        call = partial(call_graph_optimizers, module)
        options = replace(self._options, rewrites=(*self._options.rewrites, call))
        return CapturedModule(module, options, report=self._report)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        manager = self._managers(self._is_training())
        return manager.forward(*args, **kwargs)

    def _report(self, path: str, kind: str, reason: CannotCapture) -> None:
        """Log a part that PyTorch runs; raise the reason if the policy does not allow it."""
        if path or isinstance(reason, (Checkpointed, CustomFunction)):
            LOGGER.info("%s (%s) runs in PyTorch: %s", path or "the module", kind, reason)
            return
        level = self._debug_options.logging.log_level
        self._fallback_manager.handle_exception(_peer_exception(reason), level)

    def _is_training(self) -> bool:
        return bool(self._wrapped.training)

    # -- as the wrapped module -----------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "options":  # a property here and in Module: replaced as a whole
            self.__dict__["_options"] = ModuleOptions.of(value)
            self._wrap(self._wrapped)
            return
        of_module = "_wrapped" in self.__dict__ and name not in self.__dict__
        super().__setattr__(name, value)
        if of_module:
            for mode in (False, True):
                self._managers(mode).signal_model_changed()

    def __getstate__(self) -> dict[str, Any]:
        left_out = {*_REBUILT, *self._user_methods}
        return {k: v for k, v in super().__getstate__().items() if k not in left_out}

    def _replicate_for_data_parallel(self) -> NoReturn:
        raise ORTModuleTorchModelException(_DATA_PARALLEL)


def _check_module(module: Any) -> None:
    if is_data_parallel(module):
        raise ORTModuleTorchModelException(_DATA_PARALLEL)
    if len(devices_of(module)) > 1:
        raise wrap_exception(
            ORTModuleDeviceException, RuntimeError("ORTModule supports a single device per model")
        )


def _peer_exception(reason: CannotCapture) -> ORTModuleFallbackException:
    """The peer's exception for a reason."""
    if isinstance(reason, UnsupportedData):
        text = "ORTModule does not support the following model output type"
        return wrap_exception(ORTModuleIOError, TypeError(f"{text}: {reason}"))
    text = "There was an error while exporting the PyTorch model to ONNX"
    return wrap_exception(ORTModuleONNXModelException, RuntimeError(f"{text}: {reason}"))
