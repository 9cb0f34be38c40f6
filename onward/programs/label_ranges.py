"""The ranges of class labels, and their check in feeds."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import FeedError, InvalidModel, NodeFailed, ProviderError

_INT64, _UINT64 = np.dtype(np.int64), np.dtype(np.uint64)
_FEW = 64  # labels
_OUT_OF_RANGE = (
    "out of range",
    "out of data bounds",
    "within the inclusive range",
    "out of bounds",
)
_NODE = re.compile(r"while running (\w+) node")
_NUMBER = re.compile(r"idx=(-?\d+)")


@dataclass(frozen=True, kw_only=True)
class LabelRange:
    """The labels that a feed may contain: 0 to `classes` - 1, and one that is ignored."""

    name: str
    classes: int
    ignored: int | None


def check_labels(array: np.ndarray[Any, Any], labels: LabelRange) -> None:
    """Refuse labels that are not classes: an engine would read other memory for them.

    >>> check_labels(np.array([0, 2]), LabelRange(name="labels", classes=3, ignored=None))
    """
    if array.dtype == _INT64 and array.size and _are_below(array, labels.classes):
        return
    if array.dtype.kind not in "biuf":  # refused by the check of types
        return
    wrong = (array < 0) | (array >= labels.classes)
    if labels.ignored is not None:
        wrong &= array != labels.ignored
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        ignored = "" if labels.ignored is None else f" (or {labels.ignored}, which is ignored)"
        raise FeedError(
            f"{labels.name!r} holds {array[where]} at {list(where)}: "
            f"classes go from 0 to {labels.classes - 1}{ignored}\nno parameter was changed"
        )


def index_refusal(error: ProviderError) -> FeedError | None:
    """The error for a run that failed because an index was out of range; None: another reason."""
    text = str(error)
    is_index = any(words in text.lower() for words in _OUT_OF_RANGE)
    if not isinstance(error, NodeFailed) or not is_index:
        return None
    nodes, number = _NODE.findall(text), _NUMBER.search(text)
    which = "an index" if number is None else f"the index {number[1]}"
    refused = nodes[-1] if nodes else error.op_type  # the innermost is named last
    return FeedError(
        f"an input holds {which} that is out of range: {refused} refused it\n"
        "labels must be whole numbers from 0 to the number of classes - 1, tokens and other "
        "indices to the number of rows of their table - 1"
    )


def _are_below(array: np.ndarray[Any, Any], classes: int) -> bool:
    """Whether all labels are classes, with a fast path for a few labels."""
    if array.ndim == 1 and array.size <= _FEW:
        numbers = array.tolist()
        return bool(min(numbers) >= 0 and max(numbers) < classes)
    largest = np.maximum.reduce(array.view(_UINT64), axis=None)  # negative labels become huge
    return int(largest) < classes


def to_json(ranges: Iterable[LabelRange]) -> str:
    """Label ranges as JSON, for a model's metadata.

    >>> to_json([LabelRange(name="labels", classes=3, ignored=None)])
    '[{"name": "labels", "classes": 3, "ignored": null}]'
    """
    return json.dumps([dataclasses.asdict(each) for each in ranges])


def from_json(text: str) -> tuple[LabelRange, ...]:
    """Label ranges from the output of `to_json`."""
    try:
        ranges = tuple(LabelRange(**each) for each in json.loads(text))
        for each in ranges:
            if not isinstance(each.name, str) or not isinstance(each.classes, int):
                raise TypeError(f"{each} needs a name and a number of classes")
            if not isinstance(each.ignored, int | None):
                raise TypeError(f"{each.ignored!r} is not a label")
    except (TypeError, ValueError) as error:
        raise InvalidModel(
            f"the model's ranges of labels cannot be read: {error}\n"
            "make the model with onward.training.artifacts.generate_artifacts"
        ) from error
    return ranges
