"""GraphExecutionManager: runs an ORTModule's calls in one mode, training or inference."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from onward.pytorch.captured_module import CapturedModule
from onward.pytorch.captured_program import CapturedProgram
from onward.pytorch.ortmodule import call_checks
from onward.pytorch.ortmodule.program_graphs import gradient_inputs, save_program
from onward.training.ortmodule._fallback import _FallbackManager
from onward.training.ortmodule._fallback_exceptions import (
    ORTModuleDeviceException,
    ORTModuleFallbackException,
    ORTModuleIOError,
    ORTModuleONNXModelException,
)
from onward.training.ortmodule._io import _InputInfo
from onward.training.ortmodule._logger import LogLevel
from onward.training.ortmodule._onnx_models import ONNXModels
from onward.training.ortmodule.options import DebugOptions, _RuntimeOptions, _SkipCheck

# Arguments of torch's exporter that the capture sets itself.
_SET_BY_CAPTURE = {"args", "dynamic_axes", "export_params", "f", "input_names", "model"} | {
    "do_constant_folding",
    "keep_initializers_as_inputs",
    "opset_version",
    "output_names",
    "training",
    "verbose",
}


class GraphExecutionManager:
    """Runs calls: checks them, and lets PyTorch run those that the fallback policy allows."""

    def __init__(
        self,
        captured: CapturedModule,
        debug_options: DebugOptions,
        runtime_options: _RuntimeOptions,
        fallback_manager: _FallbackManager,
        is_training: bool,
    ) -> None:
        self._captured, self._is_training = captured, is_training
        self._debug_options, self._runtime_options = debug_options, runtime_options
        self._fallback_manager = fallback_manager
        self._program: CapturedProgram | None = None
        self._original_model_has_changed = False
        self._export_extra_kwargs: dict[str, Any] = {}
        self._all_in_torch = fallback_manager.is_pending()  # nothing is tried
        self._warned: set[type] = set()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call on captured graphs, or in PyTorch."""
        fallback = self._fallback_manager
        if self._all_in_torch:
            return fallback.fallback(*args, **kwargs)
        try:
            self._check(args, kwargs)
        except ORTModuleFallbackException as error:
            fallback.handle_exception(error, self._debug_options.logging.log_level)
            self._all_in_torch = not fallback.retry
            return fallback.fallback(*args, **kwargs)
        self._original_model_has_changed = False
        result = self._captured(*args, **kwargs)
        fallback.clear_for_retry()
        self._remember(self._captured.last)
        return result

    def _check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        refused = _SET_BY_CAPTURE & self._export_extra_kwargs.keys()
        if refused:
            raise ORTModuleONNXModelException(
                f"The following PyTorch exporter arguments cannot be specified: '{refused}'."
            )
        value = call_checks.unsupported_argument(args, kwargs)
        if value is not None:
            raise ORTModuleIOError(
                "ORTModule fails to extract schema from data: Unsupported flatten data type: "
                f"{type(value)}"
            )
        skips = self._runtime_options.skip_check
        if self._program is None or not skips.is_set(_SkipCheck.SKIP_CHECK_DEVICE):
            self._check_devices(args, kwargs)
        if self._debug_options.logging.log_level <= LogLevel.INFO:
            self._warn_of_constants(args, kwargs)

    def _check_devices(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._device = call_checks.call_device(self._captured.module, args, kwargs)
        for other in call_checks.tensors_elsewhere(self._device, args, kwargs):
            raise ORTModuleDeviceException(
                f"Input argument to forward found on device {other}, but expected it to be on "
                f"module device {self._device}."
            )

    def _warn_of_constants(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for kind in call_checks.constant_types(args, kwargs):
            if kind not in self._warned:
                self._warned.add(kind)
                text = f"Received input of type {kind} which may be treated as a constant by ORT"
                warnings.warn(f"{text} by default. Another value is captured again.", stacklevel=2)

    def _remember(self, program: CapturedProgram | None) -> None:
        if program is self._program:
            return
        self._program = program
        saving = self._debug_options.save_onnx_models
        if program is not None and saving.save:
            mode = "training" if self._is_training else "inference"
            opset = self._runtime_options.onnx_opset_version
            save_program(program, saving.path, saving.name_prefix, mode, opset)

    # -- what users of the peer look at --------------------------------------------------------

    @property
    def _onnx_models(self) -> ONNXModels:
        return ONNXModels(self._program, self._runtime_options.onnx_opset_version)

    @property
    def _execution_agent(self) -> CapturedProgram | None:
        return self._program

    @property
    def _graph_builder(self) -> CapturedProgram | None:
        return self._program

    @property
    def _input_info(self) -> _InputInfo | None:
        if self._program is None:
            return None
        names = tuple(self._program.capture.inputs)
        return _InputInfo(names, gradient_inputs(self._program), names)

    @property
    def _module_parameters(self) -> list[Any]:
        return list(self._captured.module.parameters())

    def _reinitialize_graph_builder(self, input_info: _InputInfo) -> bool:
        """Whether a call with these inputs needs another gradient graph."""
        known = self._input_info
        return known is None or known.require_grad_names != input_info.require_grad_names

    def signal_model_changed(self) -> None:
        """Note that an attribute of the module changed."""
        self._original_model_has_changed = True
