"""A model that one onnxruntime session runs: what it does with feeds that are no arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import FeedError
from tests.models import mlp, serialized

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.mark.parametrize("provider", ["cpu", "reference", "torch"])
@pytest.mark.parametrize(
    "feed", [None, [None], "text", b"bytes", 3, [[1, 2], [3]], {"a": 1}, object(), [X], X[0]]
)
def test_feed_that_does_not_fit_is_one_line_and_no_engine_log(
    feed: Any, provider: str, capfd: pytest.CaptureFixture[str]
) -> None:
    session = onward.InferenceSession(serialized(mlp()), providers=[provider])
    with pytest.raises(FeedError) as error:
        session.run(None, {"x": feed})
    assert "\n" not in str(error.value) and "input 'x'" in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_async_run_refuses_a_feed_of_none(capfd: pytest.CaptureFixture[str]) -> None:
    session = onward.InferenceSession(serialized(mlp()), providers=["cpu"])
    with pytest.raises(FeedError, match="input 'x' is None"):
        session.run_async(None, {"x": None}, lambda *_: None, None)
    assert capfd.readouterr() == ("", "")


def test_array_of_foreign_byte_order_gives_the_same_results() -> None:
    session = onward.InferenceSession(serialized(mlp()), providers=["cpu"])
    [expected] = session.run(None, {"x": X})
    [found] = session.run(None, {"x": X.astype(X.dtype.newbyteorder())})
    np.testing.assert_array_equal(found, expected)
