"""Signatures of models that serving's tests share."""

from __future__ import annotations

from onward.serving.requests import TensorSpec

DIGITS = [TensorSpec("pixels", "FP32", (-1, 4), ("batch", ""))]
SIGNATURES: dict[str, list[TensorSpec]] = {
    "small": DIGITS,
    "image": [TensorSpec("image", "FP32", (-1, 3, 224, 224))],
    "tokens": [
        TensorSpec("input_ids", "INT64", (-1, -1), ("batch", "time")),
        TensorSpec("mask", "BOOL", (-1, -1)),
        TensorSpec("bias", "FP16", (8,), is_optional=True),
    ],
    "texts": [TensorSpec('it\'s "quoted" $HOME\\n', "BYTES", (-1,)), TensorSpec("n", "UINT8", ())],
    "many": [TensorSpec(f"x{n}", "BF16", (20, 2)) for n in range(9)],
    "empty": [TensorSpec("x", "FP64", (0, 3))],
    "files": [TensorSpec("image", "BYTES", (-1,), ("",), is_binary=True)],
    "none": [],
}
