"""The header reader agrees with the safetensors package on types and on files that are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from onward.graph.safetensors_header import (
    ITEM_SIZES,
    HeaderError,
    header_length,
    numpy_type,
    parse_header,
)


def header_of(data: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    length = header_length(data[:8], len(data))
    return parse_header(data[8 : 8 + length], len(data))


@pytest.mark.parametrize("code", sorted(ITEM_SIZES))
def test_types_match_the_safetensors_package(code: str) -> None:
    array = np.zeros((2, 3), numpy_type(code))
    if code == "F8_E8M0":  # which the package's numpy writer does not have
        assert array.itemsize == ITEM_SIZES[code]
        return
    entries, _ = header_of(save({"a": array}))
    assert (entries["a"].code, entries["a"].shape) == (code, (2, 3))
    assert (entries["a"].begin, entries["a"].end) == (0, array.nbytes)
    assert entries["a"].dtype == array.dtype.name


def test_metadata_is_returned() -> None:
    data = save({"a": np.zeros(2)}, {"key": "text"})
    assert header_of(data)[1] == {"key": "text"}


def entry(begin: int, end: int) -> dict[str, Any]:
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("entries", "size"),
    [
        ({"a": entry(0, 2), "b": entry(1, 3)}, 3),
        ({"a": entry(0, 2), "b": entry(3, 4)}, 4),
        ({"a": entry(0, 2)}, 4),
        ({"a": entry(0, 4)}, 2),
        ({"a": {**entry(0, 4), "shape": [3]}}, 4),
        ({"a": {**entry(0, 4), "dtype": "Q7"}}, 4),
    ],
)
def test_invalid_layouts_are_refused_as_the_safetensors_package_does(
    entries: dict[str, Any], size: int, tmp_path: Path
) -> None:
    text = json.dumps(entries).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(size)
    (tmp_path / "m.safetensors").write_bytes(data)
    with pytest.raises(SafetensorError), safe_open(tmp_path / "m.safetensors", "np"):
        pass
    with pytest.raises(HeaderError):
        header_of(data)
