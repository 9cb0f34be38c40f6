"""digest_columns: a short digest of each column, which tells whether data is the same as before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from onward.runner.data.dataset import IMAGE, Array, Dataset, row_bytes

_ROWS, _BYTES, _IMAGES = 20_000, 32 << 20, 64  # at most so much of a dataset is read
_PLACES = 16  # of a large dataset, where rows are read one after another
_CHUNK = 1024  # rows that are read at once
_PROBED = 8  # rows that are read twice
_NAMED = 64  # columns that have a digest of their own


def digest_columns(dataset: Dataset, columns: Sequence[str]) -> dict[str, str]:
    """Digests of the values of columns, in the order of the rows.

    Data of up to 20,000 rows and 32 MiB is read as a whole, of larger data rows at 16 places at
    equal distances, and of a folder of images 64 and the sizes of all files. Types do not count:
    the same numbers in another kind of file have the same digest. Columns that are not the same
    when they are read twice, such as data that is augmented, have none.

    >>> from onward.runner.data.in_memory import ArrayDataset
    >>> a = digest_columns(ArrayDataset({"x": np.arange(4)}), ["x"])
    >>> a == digest_columns(ArrayDataset({"x": np.arange(4.0)}), ["x"])
    True
    """
    probe = np.arange(min(_PROBED, len(dataset)))
    first, second = (dataset.read(probe, columns) for _ in range(2))
    kept = [name for name in columns if _encode(first[name]) == _encode(second[name])]
    hashes = {name: hashlib.blake2b(digest_size=8) for name in kept}
    for name in kept:
        if dataset.columns[name].dtype == IMAGE:
            sizes: list[int] = getattr(dataset, "file_sizes", list)()
            hashes[name].update(json.dumps(sizes).encode())
    for rows in _chosen_rows(dataset, kept):
        values = dataset.read(rows, kept)
        for name in kept:
            hashes[name].update(_encode(values[name]))
    if len(kept) <= _NAMED:
        return {name: found.hexdigest() for name, found in hashes.items()}
    whole = hashlib.blake2b(digest_size=8)
    for name in kept:
        whole.update(name.encode() + hashes[name].digest())
    return {f"{kept[0]} to {kept[-1]}": whole.hexdigest()}


def _chosen_rows(dataset: Dataset, columns: Sequence[str]) -> Iterator[Array]:
    """The positions to read, some at a time."""
    found = [dataset.columns[name] for name in columns]
    if not found:
        return
    size = row_bytes(found)
    limit = min(_ROWS, _BYTES // max(size or 1, 1))
    if size is None or any(each.dtype == IMAGE for each in found):
        limit = min(limit, _IMAGES if any(each.dtype == IMAGE for each in found) else _CHUNK)
    count = len(dataset)
    together = max(limit // _PLACES, 1)
    starts = [0] if count <= limit else np.linspace(0, count - together, _PLACES).astype(int)
    length = count if count <= limit else together
    for start in starts:
        for begin in range(start, start + length, _CHUNK):
            yield np.arange(begin, min(begin + _CHUNK, start + length))


def _encode(values: Array) -> bytes:
    """Values as bytes, the same for all types of numbers that hold them."""
    if values.dtype == object:
        return b"".join(map(_encode_one, values))
    if values.dtype.kind in "bi" or (values.dtype.kind == "u" and values.dtype.itemsize < 8):
        values = values.astype(np.float64 if np.abs(values).max(initial=0) < 2**53 else np.int64)
    elif values.dtype.kind == "f":
        values = values.astype(np.float64) + 0.0  # -0.0 is 0.0
    return np.ascontiguousarray(values).tobytes()


def _encode_one(value: Any) -> bytes:
    """A text or an array of a row, with its length, so that two rows are not one."""
    found = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else None
    if found is None:
        array = np.asarray(value)
        found = str(array.shape).encode() + _encode(array)
    return len(found).to_bytes(8, "little") + found
