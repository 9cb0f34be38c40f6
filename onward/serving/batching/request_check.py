"""Check a request against a model's inputs and outputs, with Triton's texts where it has them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onward.errors import RequestInvalid
from onward.message_text import list_names
from onward.serving.batching.batch import fixed_size
from onward.serving.batching.batching import Batching
from onward.serving.requests import Array, InferRequest, TensorSpec
from onward.serving.tensor_data import DATATYPES, datatype_of

_MOST_SELECTIONS = 256  # that are remembered


class CheckedRequest(NamedTuple):
    """A request that fits the model."""

    feeds: dict[str, Array]
    rows: int  # along the batch axis; 1 if the model is not batched
    key: Hashable  # requests of the same key can be joined
    outputs: tuple[str, ...] | None  # in the model's order; None: all
    lengths: tuple[int, ...] = ()  # of the inputs that are padded


@dataclass(frozen=True, slots=True)
class _Input:
    name: str
    spec: TensorSpec
    dtype: np.dtype[Any]
    batch_axis: int | None
    free_axes: frozenset[int]  # sizes that may differ within a batch
    fixed: tuple[tuple[int, int], ...]  # axis, size

    def joint_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes that must be the same in all requests of a batch."""
        return tuple(size for axis, size in enumerate(shape) if axis not in self.free_axes)


class RequestCheck:
    """The signature of a model, prepared for checking many requests."""

    def __init__(
        self,
        model: str,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        batching: Batching,
        length_buckets: Sequence[int] = (),
    ) -> None:
        self.model, self.batching = model, batching
        self._inputs = [_prepare(spec, batching) for spec in inputs]
        needed = [each for each in self._inputs if not each.spec.has_default]
        only = needed[0] if len(needed) == 1 else None
        self._only = only if only is not None and only.free_axes == {0} else None
        self._names = {spec.name for spec in inputs}
        self._required = [spec.name for spec in inputs if not spec.is_optional]
        self._outputs = [spec.name for spec in outputs]
        self._selections: dict[tuple[str, ...], tuple[str, ...] | None] = {(): None}
        self._buckets = sorted(length_buckets)

    def __call__(self, request: InferRequest) -> CheckedRequest:
        """The feeds of a request, its rows and what it can be joined with; RequestInvalid."""
        given = request.inputs
        selection = self._select(request) if request.outputs else None
        if self._only is not None and len(given) == 1 and self._only.name in given:
            array = self._check_input(self._only, given[self._only.name])
            rows = array.shape[0]
            if 0 < rows <= self.batching.max_size:  # the common case, without the steps below
                return CheckedRequest(
                    {self._only.name: array}, rows, (selection, array.shape[1:]), selection
                )
        rows = -1 if self.batching.max_size else 1
        feeds: dict[str, Array] = {}
        parts: list[Hashable] = [selection]
        is_incomplete = False
        for each in self._inputs:
            array_or_none = given.get(each.name)
            if array_or_none is None:
                is_incomplete = is_incomplete or not each.spec.is_optional
                parts.append(None)
                continue
            array = feeds[each.name] = self._check_input(each, array_or_none)
            rows = self._check_rows(each, array, rows)
            parts.append(object() if each.spec.has_default else each.joint_shape(array.shape))
        if len(feeds) != len(given) or is_incomplete:
            raise self._wrong_names(given)
        if rows > self.batching.max_size > 0 and self.batching.limits_requests:
            raise RequestInvalid(
                f"inference request batch-size must be <= {self.batching.max_size} "
                f"for {self.model!r}"
            )
        lengths: tuple[int, ...] = ()
        if self.batching.layout.padded:
            self.batching.layout.fill_masks(feeds)
            lengths = self._lengths(feeds)
            parts.append(self._bucket(lengths))
        if rows <= 0:  # no rows, or no inputs: it runs alone
            parts.append(object())
            rows = 0 if rows == 0 else 1
        return CheckedRequest(feeds, rows, tuple(parts), selection, lengths)

    def _check_rows(self, each: _Input, array: Array, rows: int) -> int:
        """The rows of a request, which all of its inputs must have; -1: not known yet."""
        if each.batch_axis is None or array.shape[each.batch_axis] == rows:
            return rows
        if rows < 0:
            return int(array.shape[each.batch_axis])
        raise RequestInvalid(
            f"input {each.name!r} batch size does not match other inputs for {self.model!r}"
        )

    def _check_input(self, each: _Input, array: Array) -> Array:
        if array.dtype != each.dtype:
            kind = datatype_of(array.dtype)
            if kind != each.spec.datatype:
                raise RequestInvalid(
                    f"inference input {each.name!r} data-type is {kind!r}, "
                    f"but model {self.model!r} expects {each.spec.datatype!r}"
                )
        shape, expected = array.shape, each.spec.shape
        if expected:  # else it is a scalar, or its rank is not known
            if len(shape) != len(expected):
                raise self._unexpected_shape(each, shape)
            for axis, size in each.fixed:
                if shape[axis] != size:
                    raise self._unexpected_shape(each, shape)
        is_text = each.spec.datatype == "BYTES" and not each.spec.is_binary
        return _decode(each.name, array) if is_text else array

    def _unexpected_shape(self, each: _Input, shape: Sequence[int]) -> RequestInvalid:
        expected = ",".join(map(str, each.spec.shape))
        found = ",".join(map(str, shape))
        note = f"; axis {each.batch_axis} is the batch axis" if each.batch_axis is not None else ""
        return RequestInvalid(
            f"unexpected shape for input {each.name!r} for model {self.model!r}. "
            f"Expected [{expected}], got [{found}]{note}"
        )

    def _wrong_names(self, given: Mapping[str, Array]) -> RequestInvalid:
        required, most = len(self._required), len(self._inputs)
        unknown = [name for name in given if name not in self._names]
        missing = [name for name in self._required if name not in given]
        if not required <= len(given) <= most:
            expected = f"{most}" if required == most else f"{required} to {most}"
            return RequestInvalid(
                f"expected {expected} inputs but got {len(given)} inputs for model {self.model!r}\n"
                + (
                    f"missing: {list_names(missing)}"
                    if missing
                    else f"it has no input {list_names(unknown)}"
                )
            )
        if unknown:
            return RequestInvalid(
                f"unexpected inference input {unknown[0]!r} for model {self.model!r}\n"
                f"its inputs are {list_names(each.name for each in self._inputs)}"
            )
        return RequestInvalid(f"input {missing[0]!r} is missing for model {self.model!r}")

    def _select(self, request: InferRequest) -> tuple[str, ...] | None:
        """The outputs to compute, in the model's order; None: all."""
        asked = tuple([each.name for each in request.outputs])
        if asked in self._selections:
            return self._selections[asked]
        for name in asked:
            if name not in self._outputs:
                raise RequestInvalid(
                    f"unexpected inference output {name!r} for model {self.model!r}\n"
                    f"its outputs are {list_names(self._outputs)}"
                )
        selection = tuple(name for name in self._outputs if name in asked)
        found = None if len(selection) == len(self._outputs) else selection
        if len(self._selections) < _MOST_SELECTIONS:
            self._selections[asked] = found
        return found

    def _lengths(self, feeds: Mapping[str, Array]) -> tuple[int, ...]:
        padded = self.batching.layout.padded
        return tuple(
            [feeds[name].shape[each.axis] for name, each in padded.items() if name in feeds]
        )

    def _bucket(self, lengths: Sequence[int]) -> int:
        if not self._buckets:
            return 0
        length = max(lengths, default=0)
        return fixed_size(length, self._buckets) if length <= self._buckets[-1] else -1


def _prepare(spec: TensorSpec, batching: Batching) -> _Input:
    layout = batching.layout
    batch_axis = layout.axes.get(spec.name)
    free = set() if batch_axis is None else {batch_axis}
    if spec.name in layout.padded:
        free.add(layout.padded[spec.name].axis)
    fixed = tuple((axis, size) for axis, size in enumerate(spec.shape) if size != -1)
    dtype = DATATYPES[spec.datatype]
    return _Input(spec.name, spec, dtype, batch_axis, frozenset(free), fixed)


def _decode(name: str, array: Array) -> Array:
    """BYTES as texts, which is what string tensors hold."""
    items = array.reshape(-1).tolist()
    try:
        texts = [each.decode() if isinstance(each, bytes) else str(each) for each in items]
    except UnicodeDecodeError:
        raise RequestInvalid(f"input {name!r}: an element is not UTF-8 text") from None
    decoded = np.empty(len(texts), object)
    decoded[:] = texts
    return decoded.reshape(array.shape)
