"""Packing and 16-bit weights on the models of the compression benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import onward
from onward.compress import pack, unpack
from onward.compress.calibration import Calibration
from onward.compress.quality import Judge
from onward.compress.quantization.half.quantizer import HalfQuantizer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import compression_models

pytestmark = [pytest.mark.real_model, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", compression_models.NINE)
def test_packed_models_come_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    path = compression_models.path(name)
    packed = pack(path, tmp_path / "m.onnxpack")
    assert packed.after <= (0.86 if path.stat().st_size > 1 << 20 else 0.9) * packed.before
    unpack(packed.path, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", compression_models.NINE)
def test_weights_stored_in_float16_change_outputs_little(name: str, tmp_path: Path) -> None:
    path = compression_models.path(name)
    quantizer = HalfQuantizer(path, None)
    onward.save(quantizer.write(quantizer.plan), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").stat().st_size <= 0.52 * path.stat().st_size
    inputs = onward.InferenceSession(path).get_inputs()
    data = Calibration(compression_models.calibration(name), inputs, batch=1, limit=4)
    assert Judge(path, data).rate(tmp_path / "m.onnx").error <= 1e-2
