"""Forms of gradients for one kind of processor, against the forms for any: each by itself.

    python benchmarks/forms.py                      # and a file of results
    python benchmarks/forms.py --pin 0,1 --output forms.json

A case is a small model, its gradient and the rewriting for stock onnxruntime, as a training program
has them. The forms of `providers/ort/rewrites` for this machine's processor must win here before
they are chosen by default. 2 threads, one process, both forms in turns; medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import racing
import report

import onward
from onward.gradients.model import gradient
from onward.providers.ort.processor_probe import processor_probe
from onward.providers.ort.processors import ANY, AVX512, PROCESSORS, find_processor
from onward.providers.ort.rewrites.faster_forms import fuse_for_onnxruntime

Build = Callable[[Any], Any]  # from the builder to the model's output
SECONDS = 0.5  # for each form of a case


def conv(batch: int, channels: int, outputs: int, image: int, kernel: int, stride: int) -> Build:
    def build(op: Any) -> Any:
        x = op.input("x", "float32", (batch, channels, image, image))
        w = op.input("w", "float32", (outputs, channels, kernel, kernel))
        return op.Conv(x, w, pads=[kernel // 2] * 4, strides=[stride] * 2)

    return build


def relu(*shape: int) -> Build:
    """A layer with ReLU between two products: its mask is applied to the product of the second."""

    def build(op: Any) -> Any:
        x, w = op.input("x", "float32", shape), op.input("w", "float32", (shape[-1], shape[-1]))
        return op.MatMul(op.Relu(x), w)

    return build


def batch_norm(*shape: int) -> Build:
    def build(op: Any) -> Any:
        x = op.input("x", "float32", shape)
        scale, bias = (op.input(name, "float32", shape[1:2]) for name in ("scale", "bias"))
        mean, variance = np.zeros(shape[1], np.float32), np.ones(shape[1], np.float32)
        given = (x, scale, bias, mean, variance)
        return op.BatchNormalization(*given, training_mode=1, outputs=3)[0]

    return build


def layer_norm(*shape: int) -> Build:
    def build(op: Any) -> Any:
        x = op.input("x", "float32", shape)
        scale, bias = (op.input(name, "float32", shape[-1:]) for name in ("scale", "bias"))
        return op.LayerNormalization(x, scale, bias, axis=-1)

    return build


CASES: dict[str, Build] = {
    **{
        "convolution, batch {}, {} to {} channels, {} pixels, kernel {}, stride {}".format(
            *sizes
        ): conv(*sizes)
        for sizes in [
            (32, 3, 32, 32, 3, 1),
            (32, 32, 64, 32, 3, 2),
            (32, 64, 128, 16, 3, 2),
            (16, 64, 64, 16, 3, 1),
            (16, 128, 128, 8, 3, 1),
            (16, 256, 256, 4, 3, 1),
            (8, 256, 512, 4, 3, 2),
            (8, 512, 512, 2, 3, 1),
            (4, 64, 64, 56, 3, 1),
            (8, 128, 128, 28, 1, 1),
            (16, 3, 64, 64, 7, 2),
            (8, 24, 24, 32, 3, 1),
        ]
    },
    "ReLU, 512 x 1,024": relu(512, 1024),
    "BatchNormalization, 32 x 32 x 32 x 32": batch_norm(32, 32, 32, 32),
    "BatchNormalization, 32 x 128 x 8 x 8": batch_norm(32, 128, 8, 8),
    "LayerNormalization, 512 x 128": layer_norm(8, 64, 128),
    "LayerNormalization, 512 x 1,024": layer_norm(512, 1024),
}


def graphs(build: Build, processor: str) -> bytes:
    """The model with its gradient, in the form for a processor."""
    op = onward.OpBuilder()
    model = op.model(y=build(op))
    names = [str(value.name) for value in model.graph.inputs]
    fused = fuse_for_onnxruntime(gradient(model, {"y": "dy"}, names), processor)
    data: bytes = ir.to_proto(fused).SerializeToString()
    return data


def runner(data: bytes) -> Callable[[], None]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    generator, binding = np.random.default_rng(0), session.io_binding()
    for value in session.get_inputs():
        binding.bind_cpu_input(value.name, generator.random(value.shape, np.float32))
    for value in session.get_outputs():
        memory = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(value.shape, np.float32))
        binding.bind_ortvalue_output(value.name, memory)
    return lambda: session.run_with_iobinding(binding)


def measure(case: str, processor: str) -> dict[str, Any]:
    """Milliseconds of both forms, in turns."""
    forms = {name: runner(graphs(CASES[case], name)) for name in (ANY, processor)}
    times: dict[str, list[float]] = {name: [] for name in forms}
    for run in forms.values():
        run()
    started = time.perf_counter()
    while time.perf_counter() - started < SECONDS * len(forms):
        for name, run in forms.items():
            begin = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - begin))
    any_ms, own_ms = (statistics.median(each) for each in times.values())
    return {"case": case, "any_ms": any_ms, "own_ms": own_ms, "speedup": any_ms / own_ms}


def main() -> None:
    given = racing.arguments(__doc__ or "", list(CASES), PROCESSORS)
    processor = find_processor(processor_probe())
    if processor == ANY:
        print(f"this processor has no forms of its own; {AVX512} has")
        return
    print(f"{'forward and backward, ms':72} {'any':>8} {processor:>14}")
    rows = []
    for case in given.models:
        row = measure(case, processor)
        rows.append(row)
        print(f"{case:72} {row['any_ms']:8.2f} {row['own_ms']:14.2f} {row['speedup']:6.2f}x")
    if given.whole or given.output is not None:
        print(f"wrote {report.write('forms', rows, given.output, processor=processor)}")


if __name__ == "__main__":
    main()
