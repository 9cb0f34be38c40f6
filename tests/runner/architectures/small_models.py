"""Every architecture in a size that tests can afford, and feeds for any of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]
TOKENS = 11
_TEXT: dict[str, Any] = {"layers": 1, "heads": 2, "width": 8, "vocabulary": TOKENS, "context": 9}

SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"features": 6, "hidden": (8,), "classes": 3},
    "cnn": {"image": (1, 8, 8), "channels": (4, 8), "hidden": 16, "classes": 3},
    "resnet": {"image": (1, 8, 8), "classes": 3},
    "squeezenet": {"image": (1, 8, 8), "classes": 3},
    "mobilenet": {"image": (1, 8, 8), "classes": 3, "width": 0.1},
    "unet": {"image": (1, 8, 8), "channels": 2, "stages": 1},
    "transformer": {**_TEXT, "hidden": 16},
    "vit": {"layers": 1, "heads": 2, "width": 8, "image": (1, 8, 8), "classes": 3},
    "bert": _TEXT,
    "gpt2": _TEXT,
    "lstm": {"width": 4, "hidden": 4, "vocabulary": TOKENS},
    "autoencoder": {"image": (1, 8, 8), "hidden": (4, 8), "code": 3},
}


def make_feeds(model: ir.Model, batch: int, time: int = 5, seed: int = 0) -> dict[str, Array]:
    """Random feeds; tokens are never padding."""
    rng, feeds = np.random.default_rng(seed), {}
    dynamic_sizes = {"batch": batch, "time": time}
    for value in model.graph.inputs:
        shape = [dynamic_sizes.get(str(size), size) for size in value.shape or ()]
        if value.name == "tokens":
            feeds[value.name] = rng.integers(1, TOKENS, shape)
        elif value.dtype == ir.DataType.INT64:
            kind = np.ones if value.name == "mask" else np.zeros
            feeds[str(value.name)] = kind(shape, np.int64)
        else:
            feeds[str(value.name)] = rng.normal(size=shape).astype(np.float32)
    return feeds
