"""Feeds: numbers, texts and OrtValues, checked by name."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from onward.errors import FeedError
from onward.graph.builder import OpBuilder
from onward.providers.ort.bound import BoundSession
from onward.training.api.feeds import check_feeds
from tests.models import serialized


@pytest.fixture
def session() -> BoundSession:
    op = OpBuilder()
    words = op.input("words", "string", ("n", 2))
    x = op.input("x", "float32", ("n",))
    scale = op.input("scale", "float32", ())
    model = op.model(y=op.Cast(words, to=int(ir.DataType.FLOAT)), z=op.Mul(x, scale))
    return BoundSession(serialized(model))


def test_texts_and_numbers_are_fed(session: BoundSession) -> None:
    words = np.array([["1.5", "2"]])
    feeds = check_feeds(session, session.input_names, [words, [np.float32(3)], np.float32(2)])
    for name, value in feeds.items():
        session.bind_input(name, value)
    y, z = session.run()
    assert y.numpy().tolist() == [[1.5, 2.0]] and z.numpy().tolist() == [6.0]


def test_what_does_not_fit_is_named(session: BoundSession) -> None:
    x, words = np.ones(1, np.float32), np.array([["a", "b"]])
    for given, law in (
        ((x, x, x), r"input 'words' is a tensor\(string\) of shape \(n, 2\), not float32"),
        ((words, x.astype(int), x[0]), r"not int64 of shape \(1,\)\ngive it as numpy.float32"),
        ((words, np.ones(2, np.float32), x[0]), "'n' is 1 in input 'words' but 2 in 'x'"),
        ((words, x), "the model takes 3 inputs, not 2\ncall it with words, x, scale"),
    ):
        with pytest.raises(FeedError, match=law):
            check_feeds(session, session.input_names, given)
    wrong = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones(1))
    with pytest.raises(FeedError, match=r"'x' is a .*, not tensor\(double\) of shape \(1,\)"):
        check_feeds(session, session.input_names, (words, wrong, x[0]))


def test_what_is_no_array_of_numbers_is_named(session: BoundSession) -> None:
    x, words = np.ones(1, np.float32), np.array([["a", "b"]])
    for wrong, law in (
        (None, "input 'x' is no array of numbers: it is NoneType\ngive a numpy array"),
        ({"x": x}, "input 'x' is no array of numbers: it is dict\ngive a numpy array"),
        (x.astype(object), "'x' is no array of numbers: it holds objects, such as float\ngive a"),
        ([[1.0], [1.0, 2.0]], "input 'x' is no array: setting an array element with a sequence"),
    ):
        with pytest.raises(FeedError, match=law):
            check_feeds(session, session.input_names, (words, wrong, x[0]))


def test_tensors_of_torch_and_any_order_of_bytes_are_fed(session: BoundSession) -> None:
    words = np.array([["a", "b"], ["c", "d"]])
    for x in (torch.ones(2, requires_grad=True), np.ones(2, ">f4"), np.ones(4, np.float32)[::2]):
        feeds = check_feeds(session, session.input_names, (words, x, np.float32(1)))
        assert feeds["x"].dtype == np.float32 and feeds["x"].tolist() == [1.0, 1.0]
        assert feeds["x"].flags.c_contiguous and feeds["scale"].shape == ()
