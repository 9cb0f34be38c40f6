"""What each target runs: formats, newest opset, types, limits, and the size of its runtime."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onward.errors import OptionError, UnsupportedModel
from onward.graph.dtypes import HALVES
from onward.graph.files import weight_bytes
from onward.graph.scopes import graphs_of, walk

MB = 1_000_000
_STANDARD = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_MACHINE_SPECIFIC = ("com.microsoft.nchwc", "com.ms.internal.nhwc")
_WIDE = (ir.DataType.INT64, ir.DataType.UINT64, ir.DataType.DOUBLE)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A place where a model runs.

    Attributes:
        name: as the command line takes it
        runtime: what runs the model there
        suffix: of the model's file: ".onnx" or ".ort"
        newest_opset: of ONNX's own operators that the runtime takes
        weight_limit: bytes of weights
        is_arm: whether its processors are ARM
        has_half: whether it computes with 16-bit floats
        downloads: bytes of the runtime by part, for the table of sizes
    """

    name: str
    runtime: str
    suffix: str
    newest_opset: int
    weight_limit: int
    is_arm: bool = False
    has_half: bool = True
    downloads: Mapping[str, int] = field(default_factory=dict)


_GIB = 1 << 30
# Sizes: onnxruntime-web 1.30.0 and onnxruntime-node as published on npm; the libraries of Android
# and of a reduced build as reported for one transformer (docs/compress-edge.md).
TARGETS = {
    target.name: target
    for target in (
        Target(
            name="web",
            runtime="onnxruntime-web",
            suffix=".onnx",
            newest_opset=26,
            weight_limit=2 * _GIB,
            has_half=False,
            downloads={
                "ort-wasm-simd-threaded.wasm": 14_239_897,
                "ort-wasm-simd-threaded.wasm, gzip": 3_659_955,
                "ort-wasm-simd-threaded.jsep.wasm (WebGPU)": 28_312_028,
                "ort-wasm-simd-threaded.jsep.wasm, gzip": 6_623_433,
            },
        ),
        Target(
            name="node",
            runtime="onnxruntime-node",
            suffix=".onnx",
            newest_opset=26,
            weight_limit=2 * _GIB,
            downloads={"npm package, all platforms": 113 * MB, "linux-arm64 library": 25 * MB},
        ),
        Target(
            name="android",
            runtime="onnxruntime-android",
            suffix=".ort",
            newest_opset=26,
            weight_limit=2 * _GIB,
            is_arm=True,
            downloads={"arm64 library, full": 27 * MB, "arm64 library, reduced": 11 * MB},
        ),
        Target(
            name="ios",
            runtime="onnxruntime-objc",
            suffix=".ort",
            newest_opset=26,
            weight_limit=2 * _GIB,
            is_arm=True,
        ),
        Target(
            name="minimal",
            runtime="a minimal build of onnxruntime",
            suffix=".ort",
            newest_opset=26,
            weight_limit=2 * _GIB,
        ),
    )
}


def find_target(name: str) -> Target:
    """The target of this name."""
    if name not in TARGETS:
        raise OptionError(f"no target {name!r}\nit must be one of {', '.join(TARGETS)}")
    return TARGETS[name]


def check_target(model: ir.Model, target: Target, *, webgpu: bool = False) -> None:
    """Refuse what a target lacks, and name all of it."""
    reasons = list(dict.fromkeys(_missing(model, target, webgpu)))
    if reasons:
        shown = reasons[:5] + [f"{len(reasons) - 5} more"] * (len(reasons) > 5)
        raise UnsupportedModel(
            f"{target.name} cannot run this model: {'; '.join(shown)}\n{_advice(reasons, target)}"
        )


def _advice(reasons: list[str], target: Target) -> str:
    if any("16-bit" in reason for reason in reasons):
        return "export the model in float32, or quantize it to int8"
    if any("opset" in reason for reason in reasons):
        return f"export the model with opset {target.newest_opset} or older"
    if any("GiB" in reason for reason in reasons):
        return "quantize or prune the model first"
    return "replace these operators or types, or choose another target"


def _missing(model: ir.Model, target: Target, webgpu: bool) -> Iterator[str]:
    opset = model.opset_imports.get("", 0)
    if opset > target.newest_opset:
        yield f"it has opset {opset}, and {target.runtime} takes {target.newest_opset} at most"
    if (size := weight_bytes(model)) > target.weight_limit:
        limit = target.weight_limit / _GIB
        yield f"its weights have {size / _GIB:.1f} GiB, and the limit is {limit:g} GiB"
    yield from _missing_operators(model, target)
    if not target.has_half:
        yield from _values_of(model, HALVES, "16-bit floats, which wasm does not compute with")
    if webgpu:
        yield from _boundary_of(model, _WIDE, "64-bit numbers, which WebGPU does not compute with")


def _missing_operators(model: ir.Model, target: Target) -> Iterator[str]:
    functions = {(function.domain, function.name) for function in model.functions.values()}
    for node in walk(model.graph):
        if (node.domain, node.op_type) in functions:
            continue
        if node.domain in _MACHINE_SPECIFIC:
            yield (
                f"{node.domain}::{node.op_type} (node {node.name!r}) was optimised for one machine"
            )
        elif node.domain not in _STANDARD:
            name = f"{node.domain}::{node.op_type} (node {node.name!r})"
            yield f"{target.runtime} has no operator {name}"


def _values_of(model: ir.Model, types: Collection[int], what: str) -> Iterator[str]:
    for graph in graphs_of(model):
        made = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *made):
            if value.dtype in types:
                yield f"{value.name!r} has {what}"


def _boundary_of(model: ir.Model, types: Collection[int], what: str) -> Iterator[str]:
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.dtype in types:
            yield f"{value.name!r} has {what}"
