"""The models that all peers serve, read from raw bytes; imports nothing of Onward."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnxruntime

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class PeerModel:
    """A model with the reading, joining and splitting that a peer's user would write."""

    def __init__(self, case: str, path: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        self._is_text = case == "minilm"

    def read(self, body: bytes) -> Any:
        """One request: a row of numbers (mlp), or the tokens of a sentence (minilm)."""
        if self._is_text:
            return np.frombuffer(body, np.int64)
        return np.frombuffer(body, np.float32)

    def run_one(self, item: Any) -> bytes:
        return self._run(self._feeds_of_one(item)).tobytes()

    def run_batch(self, items: list[Any]) -> list[bytes]:
        """Join requests, padded with a mask where they have different lengths; split the rows."""
        if not self._is_text:
            rows = self._run({"x": np.stack(items)})
        else:
            tokens = np.zeros((len(items), max(map(len, items))), np.int64)
            mask = np.zeros_like(tokens)
            for row, item in enumerate(items):
                tokens[row, : len(item)] = item
                mask[row, : len(item)] = 1
            rows = self._run({"input_ids": tokens, "attention_mask": mask})
        return [row.tobytes() for row in rows]

    def _feeds_of_one(self, item: Any) -> dict[str, Any]:
        if self._is_text:
            return {"input_ids": item[None], "attention_mask": np.ones((1, len(item)), np.int64)}
        return {"x": item[None]}

    def _run(self, feeds: dict[str, Any]) -> Any:
        return self._session.run(None, feeds)[0]
