"""OpenVINOExecutionProvider: OpenVINO's own compiler and kernels, through its Python package."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import openvino

from onward.errors import OptionError, ProviderError
from onward.passes.downgrade import fits_opset
from onward.passes.rewrite import nodes_of
from onward.providers.defect import X86, Platform, architecture
from onward.providers.openvino.data_rounding import ROUNDED_TOGETHER, has_small_weights
from onward.providers.openvino.executable import OpenVINOExecutable, one_line
from onward.providers.openvino.serialize import NEWEST_OPSET, serialize
from onward.providers.openvino.supported_types import Refusals
from onward.providers.options import SessionOptions
from onward.providers.single_nodes import node_signature, single_node_model

NAME = "OpenVINOExecutionProvider"
_CAPABILITIES = {"f32": "FP32", "f16": "FP16", "bf16": "BF16"}
_CHOOSERS = ("AUTO", "HETERO", "MULTI", "BATCH")  # virtual devices that choose among real ones
_DATA_GROUP = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
_PROBED_WITH = 65536  # bytes; larger constants become inputs when a single node is tested


def make_openvino(given: Mapping[str, Any], options: SessionOptions) -> OpenVINOProvider:
    """Create the provider from its options and the session's."""
    device = _device(str(given.get("device", "CPU")))
    precision = _precision(str(given.get("precision", "f32")), device)
    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
        "EXECUTION_MODE_HINT": "ACCURACY" if precision == "f32" else "PERFORMANCE",
        "PERF_COUNT": options.enable_profiling,
    }
    threads = _threads(given.get("threads", options.intra_op_num_threads))
    if threads and device.startswith(("CPU", *_CHOOSERS)):
        settings["INFERENCE_NUM_THREADS"] = threads
    if "cache_dir" in given:
        settings["CACHE_DIR"] = str(given["cache_dir"])
    rounds = _flag("dynamic_quantization", given.get("dynamic_quantization", True))
    return OpenVINOProvider(device, settings, rounds_data=rounds)


@functools.cache
def core() -> openvino.Core:
    """OpenVINO's Core, one for the process, as it loads the plugins."""
    return openvino.Core()


def platform_of(device: str) -> Platform:
    """The platform of a device, for its known defects; only the CPU plugin's were tested."""
    return Platform(openvino.__version__, architecture() if device == "CPU" else device)


def _device(text: str) -> str:
    here = core().available_devices
    base = text.split(":")[0].split(".")[0]
    if base in _CHOOSERS or any(text in (name, name.split(".")[0]) for name in here):
        return text
    raise OptionError(f"OpenVINO has no device {text!r} here: it has {', '.join([*here, 'AUTO'])}")


def _precision(text: str, device: str) -> str:
    if text not in _CAPABILITIES:
        raise OptionError(f"{NAME}'s precision must be f32, f16 or bf16, not {text!r}")
    if device.startswith(_CHOOSERS) or text == "f32":
        return text
    able = core().get_property(device, "OPTIMIZATION_CAPABILITIES")
    if _CAPABILITIES[text] not in able:
        raise OptionError(f"OpenVINO's {device} does not compute in {text} on this machine")
    return text


def _threads(given: Any) -> int:
    try:
        threads = int(given)
    except (TypeError, ValueError):
        threads = -1
    if threads < 0:
        raise OptionError(f"{NAME}'s threads must be a whole number, 0 or more, not {given!r}")
    return threads


def _flag(name: str, given: Any) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if (text := str(given).lower()) not in known:
        raise OptionError(f"{NAME}'s {name} must be True or False, not {given!r}")
    return known[text]


class OpenVINOProvider:
    """Compiles parts with OpenVINO for one device."""

    name = NAME

    def __init__(
        self,
        device: str,
        settings: Mapping[str, Any],
        place: Platform | None = None,
        *,
        rounds_data: bool = True,
    ) -> None:
        """`place`: assume the defects of another version or processor.

        `rounds_data`: to 8 bits, where it is multiplied by weights of 4.
        """
        self._device, self._settings = device, dict(settings)
        place = place or platform_of(device)
        self._rounds_data = rounds_data and place.architecture == X86
        self._refusals = Refusals(place)
        self._probed: dict[tuple[Any, ...], bool] = {}
        self._whole: tuple[ir.Model, OpenVINOExecutable] | None = None

    def takes(self, model: ir.Model) -> bool:
        """Whether it compiles the whole model; `compile` then returns what was compiled here."""
        self._whole = None
        nodes = list(nodes_of(model))
        if not nodes or any(self._refused(node, model.opset_imports) for node in nodes):
            return False
        try:
            self._whole = (model, self._compile(model))
        except Exception:  # a single node need not be tested again
            if len(nodes) == 1 and (key := _key(nodes[0])) is not None:
                self._probed[key] = False
            return False
        return True

    def supports(self, node: ir.Node, opsets: dict[str, int]) -> bool:
        """Whether OpenVINO converts and compiles a model of only this node."""
        key = _key(node)
        if key is None or self._refused(node, opsets):
            return False
        if key not in self._probed:
            self._probed[key] = self._compiles(node, opsets)
        return self._probed[key]

    def _refused(self, node: ir.Node, opsets: dict[str, int]) -> bool:
        fits = fits_opset(node, opsets.get("", 1), NEWEST_OPSET)
        return not fits or self._refusals.reason(node) is not None

    def _compiles(self, node: ir.Node, opsets: dict[str, int]) -> bool:
        try:
            self._compile(single_node_model(node, opsets, constants_up_to=_PROBED_WITH))
        except Exception:
            return False
        return True

    def compile(self, model: ir.Model) -> OpenVINOExecutable:
        whole, self._whole = self._whole, None
        if whole is not None and whole[0] is model:
            return whole[1]
        try:
            return self._compile(model)
        except Exception as error:
            raise ProviderError(
                f"OpenVINO cannot run its part of the model: {one_line(error)}"
            ) from error

    def _compile(self, model: ir.Model) -> OpenVINOExecutable:
        proto, weights = serialize(model)
        read = core().read_model(io.BytesIO(proto))
        settings = self._settings
        if self._rounds_data and has_small_weights(model):
            settings = settings | {_DATA_GROUP: ROUNDED_TOGETHER}
        native = core().compile_model(read, self._device, settings)
        return OpenVINOExecutable(native, model.graph, weights, self._settings["PERF_COUNT"])


def _key(node: ir.Node) -> tuple[Any, ...] | None:
    """A cache key of all that decides whether OpenVINO runs a node; None: a type is unknown."""
    key = node_signature(node)
    return None if key is None else (*key, *map(_form, node.inputs))


def _form(value: ir.Value | None) -> tuple[Any, ...]:
    """What in addition to its type decides: whether a value is constant, its static dimensions."""
    if value is None or value.shape is None:
        return ()
    sizes = tuple(isinstance(size, int) for size in value.shape)
    return (value.is_initializer() and not value.is_graph_input(), *sizes)
