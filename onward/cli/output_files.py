"""Describe outputs in one line each, and save them as .npy, .npz or .json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import OptionError
from onward.graph.paths import check_writable, writing

Array = np.ndarray[Any, Any]
_FIRST = 6  # values shown in a line
_DATA_AT_MOST = 1000  # elements of a tensor that --json prints; files have all
_ROWS_AT_MOST = 16  # rows whose largest values are shown


def describe(tensor: Any, top: int = 0) -> dict[str, Any]:
    """A tensor's type, shape, range and first values; also its data if it is small."""
    if not isinstance(tensor, np.ndarray):
        items = tensor if isinstance(tensor, list) else []
        kind = "sequence" if isinstance(tensor, list) else type(tensor).__name__
        first = ", ".join(
            f"{i.dtype}{list(i.shape)}" for i in items[:_FIRST] if hasattr(i, "dtype")
        )
        return {"dtype": kind, "shape": [len(items)], "first": first or str(tensor)[:80]}
    facts: dict[str, Any] = {"dtype": _type_name(tensor), "shape": list(tensor.shape)}
    values = as_numbers(tensor)
    if values is not None and values.size:
        facts |= _range(values)
    shown = [_format_value(value) for value in tensor.reshape(-1)[:_FIRST]]
    facts["first"] = ", ".join(shown) + (", ..." if tensor.size > _FIRST else "")
    if non_finite := count_non_finite(tensor):
        facts["warning"] = non_finite
    if tensor.size <= _DATA_AT_MOST:
        facts["data"] = _cast_to_native_dtype(tensor).tolist()
    if top:
        facts["top"] = [[list(pair) for pair in row] for row in top_classes(tensor, top)]
    return facts


def _type_name(tensor: Array) -> str:
    return "string" if tensor.dtype.kind in "OUS" else tensor.dtype.name


def as_numbers(tensor: Any) -> Array | None:
    """A tensor's values as float64; None for strings and complex numbers."""
    if not isinstance(tensor, np.ndarray) or tensor.dtype.kind in "OUSc":
        return None
    return tensor.astype(np.float64)


def _range(values: Array) -> dict[str, float]:
    """Minimum, mean and maximum of the finite values, if there are any."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return {}
    numbers = {"min": finite.min(), "mean": finite.mean(), "max": finite.max()}
    return {name: float(number) for name, number in numbers.items()}


def count_non_finite(tensor: Any) -> str:
    """A text with the counts of NaN and infinite values; "" if there are none."""
    values = as_numbers(tensor)
    if values is None:
        return ""
    counts = {"NaN": int(np.isnan(values).sum()), "infinite": int(np.isinf(values).sum())}
    parts = [f"{count:,} {word}" for word, count in counts.items() if count]
    return f"{' and '.join(parts)} of {values.size:,} values" if parts else ""


def _format_value(value: Any) -> str:
    if isinstance(value, (str, bytes)):
        return repr(value)
    if isinstance(value, (np.bool_, np.integer, complex, np.complexfloating)):
        return str(value)
    return f"{float(value):.5g}"


def top_classes(tensor: Any, top: int) -> list[list[tuple[int, float]]]:
    """The largest values along the last axis with their indices, row by row."""
    values = as_numbers(tensor)
    if values is None or values.ndim == 0 or values.shape[-1] < 2:
        return []
    rows = values.reshape(-1, values.shape[-1])[:_ROWS_AT_MOST]
    best = [np.argsort(-row, kind="stable")[:top] for row in rows]
    return [[(int(i), float(row[i])) for i in order] for row, order in zip(rows, best)]


def check_target(path: Path, suffixes: tuple[str, ...]) -> Path:
    """Check that a file can be written, before anything runs."""
    if path.suffix.lower() not in suffixes:
        raise OptionError(f"{path}: outputs are saved as {' or '.join(suffixes)}")
    check_writable(path)
    return path


def write_outputs(path: Path, outputs: Mapping[str, Any], *, one: bool) -> None:
    """Save outputs in the format of the suffix; types that numpy lacks become float32."""
    plain = {name: _cast_to_native_dtype(tensor) for name, tensor in outputs.items()}
    if path.suffix.lower() == ".json":
        lists = {name: _to_lists(tensor) for name, tensor in plain.items()}
        with writing(path):
            text = json.dumps(next(iter(lists.values())) if one else lists)
            path.write_text(text + "\n", "utf-8")
        return
    for name, tensor in plain.items():
        if not isinstance(tensor, np.ndarray):
            raise OptionError(f"{path}: output {name!r} is not a tensor\nsave it as .json")
    with writing(path), path.open("wb") as file:
        if one:
            np.save(file, next(iter(plain.values())), allow_pickle=False)
        else:
            np.savez(file, **plain)


def _cast_to_native_dtype(tensor: Any) -> Any:
    """Cast a tensor of a type that numpy lacks, such as bfloat16, to float32; and text to str."""
    if not isinstance(tensor, np.ndarray):
        return (
            [_cast_to_native_dtype(item) for item in tensor] if isinstance(tensor, list) else tensor
        )
    if tensor.dtype.kind in "OUS":
        return tensor.astype(np.str_)
    native = tensor.dtype.kind in "biufc" and tensor.dtype.isbuiltin == 1
    return tensor if native else tensor.astype(np.float32)


def _to_lists(tensor: Any) -> Any:
    if isinstance(tensor, list):
        return [_to_lists(item) for item in tensor]
    if isinstance(tensor, np.ndarray) and tensor.dtype.kind == "c":
        return np.stack([tensor.real, tensor.imag], -1).tolist()
    return tensor.tolist() if isinstance(tensor, np.ndarray) else tensor
