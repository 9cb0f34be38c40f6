"""Compress a model as a user of a peer would: with its defaults, or with its documented best.

    python compress_with_peer.py PEER model.onnx calibration.npz out.onnx

calibration.npz holds one array for each input, with one set of feeds for each index of the first
axis. Runs in the peers' environment: it imports nothing of Onward.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

Feeds = dict[str, Any]


def batches(calibration: str) -> list[Feeds]:
    arrays = dict(np.load(calibration))
    return [{name: array[row] for name, array in arrays.items()} for row in range(_rows(arrays))]


def _rows(arrays: Feeds) -> int:
    return len(next(iter(arrays.values())))


class _Reader:
    """onnxruntime's CalibrationDataReader."""

    def __init__(self, calibration: str) -> None:
        self._left: Iterator[Feeds] = iter(batches(calibration))

    def get_next(self) -> Feeds | None:
        return next(self._left, None)

    def __iter__(self) -> Iterator[Feeds]:
        return self._left

    def rewind(self) -> None:
        raise NotImplementedError


def _preprocessed(model: str, folder: str) -> str:
    """The model after onnxruntime's own preparation, as its documentation asks for."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = str(Path(folder) / "prepared.onnx")
    try:
        quant_pre_process(model, prepared)
    except Exception:  # it refuses several models: "incomplete symbolic shape inference"
        quant_pre_process(model, prepared, skip_symbolic_shape=True)
    return prepared


def ort_dynamic(model: str, calibration: str, out: str) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(model, out)


def ort_dynamic_per_channel(model: str, calibration: str, out: str) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(model, out, per_channel=True, weight_type=QuantType.QInt8)


def ort_static(model: str, calibration: str, out: str) -> None:
    from onnxruntime.quantization import quantize_static

    with tempfile.TemporaryDirectory() as folder:
        quantize_static(_preprocessed(model, folder), out, _Reader(calibration))


def ort_static_u8s8(model: str, calibration: str, out: str) -> None:
    from onnxruntime.quantization import QuantType, quantize_static

    with tempfile.TemporaryDirectory() as folder:
        quantize_static(
            _preprocessed(model, folder),
            out,
            _Reader(calibration),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )


def nncf_static(model: str, calibration: str, out: str) -> None:
    import nncf

    loaded = onnx.load(model)
    transformer = any(node.op_type in ("LayerNormalization", "Erf") for node in loaded.graph.node)
    kind = nncf.ModelType.TRANSFORMER if transformer else None
    data = nncf.Dataset(batches(calibration))
    onnx.save(nncf.quantize(loaded, data, model_type=kind), out)


def onnxsim_dynamic(model: str, calibration: str, out: str) -> None:
    import onnxsim

    onnx.save(onnxsim.quantize_dynamic(model), out)


def onnxsim_static(model: str, calibration: str, out: str) -> None:
    import onnxsim

    onnx.save(onnxsim.quantize_static(model, calibration_data=batches(calibration)), out)


def onnxsim_prune(model: str, calibration: str, out: str) -> None:
    import onnxsim

    onnx.save(onnxsim.apply_structured_pruning(model, sparsity=0.5), out)


def converter_float16(model: str, calibration: str, out: str) -> None:
    from onnxconverter_common import float16

    onnx.save(float16.convert_float_to_float16(onnx.load(model), keep_io_types=True), out)


def ort_int4(model: str, calibration: str, out: str) -> None:
    """RTN, blocks of 32, as onnxruntime's own tool writes it."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(model), bits=4, block_size=32, accuracy_level=4)
    quantizer.process()
    quantizer.model.save_model_to_file(out)


PEERS: dict[str, Callable[[str, str, str], None]] = {
    "ort-dynamic": ort_dynamic,
    "ort-dynamic-per-channel": ort_dynamic_per_channel,
    "ort-static": ort_static,
    "ort-static-u8s8": ort_static_u8s8,
    "nncf": nncf_static,
    "onnxsim-dynamic": onnxsim_dynamic,
    "onnxsim-static": onnxsim_static,
    "onnxsim-prune": onnxsim_prune,
    "converter-float16": converter_float16,
    "ort-int4": ort_int4,
}


if __name__ == "__main__":
    PEERS[sys.argv[1]](*sys.argv[2:])
