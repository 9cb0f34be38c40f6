"""Texts as inputs: a tokenizer.json next to the model makes input_ids and attention_mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import OptionError, PackageMissing
from onward.serving.requests import Array, TensorSpec
from onward.serving.tensor_data import DATATYPES

FILE = "tokenizer.json"
_FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


def tokenizer_preprocessing(
    inputs: Sequence[TensorSpec], folder: Path
) -> tuple[list[TensorSpec], Callable[[Mapping[str, Array]], dict[str, Array]]]:
    """The specs and the function of a model of tokens: one input `text`."""
    unknown = [spec.name for spec in inputs if spec.name not in _FIELDS]
    if unknown:
        raise OptionError(
            f"preprocess: tokenizer makes {', '.join(_FIELDS)}, but the model takes {unknown[0]!r}"
        )
    length = next((spec.shape[1] for spec in inputs if spec.shape[1:] and spec.shape[1] > 0), None)
    tokenizer = _open(folder / FILE)
    if tokenizer.padding is None or length is not None:
        own = tokenizer.padding or {}  # its token and its side, of which the length is replaced
        tokenizer.enable_padding(**{**own, "length": length})
    if length is not None:
        tokenizer.enable_truncation(length)

    def prepare(feeds: Mapping[str, Array]) -> dict[str, Array]:
        texts = [_text(each) for each in feeds["text"].reshape(-1).tolist()]
        encoded = tokenizer.encode_batch(texts)
        longest = len(encoded[0].ids) if encoded else length or 0
        return {
            spec.name: np.array(
                [getattr(each, _FIELDS[spec.name]) for each in encoded], DATATYPES[spec.datatype]
            ).reshape(len(texts), longest)
            for spec in inputs
        }

    return [TensorSpec("text", "BYTES", (-1,))], prepare


def _open(path: Path) -> Any:
    if not path.is_file():
        raise OptionError(f"there is no {path}: put the model's {FILE} next to it")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise PackageMissing(
            f"{FILE} needs the package tokenizers, which is not installed\n"
            "install it with: pip install tokenizers"
        ) from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare exceptions
        raise OptionError(f"{path} cannot be read: {error}") from error


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
