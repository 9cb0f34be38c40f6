"""batching: auto joins what can be joined, explicit settings are refused with the reason."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from onward.errors import OptionError
from onward.serving.batching.batch import PaddedInput
from onward.serving.batching.batching import plan_batching, served_inputs, served_outputs
from onward.serving.requests import TensorSpec
from onward.serving.settings import ModelSettings
from tests.serving.instances import FunctionInstance, doubler


def centred() -> FunctionInstance:
    return doubler(function=lambda x: {"y": x - x.mean(0)})


def settings(**values: Any) -> ModelSettings:
    return ModelSettings.model_validate(values)


def test_auto_joins_a_model_whose_answers_stay_the_same() -> None:
    found = plan_batching("m", doubler(), settings())
    assert (found.max_size, dict(found.axes), found.reason) == (32, {"x": 0, "y": 0}, "")
    assert found.is_checked
    assert not found.limits_requests


def test_auto_does_not_join_a_model_that_normalises_over_its_batch() -> None:
    found = plan_batching("m", centred(), settings())
    assert found.max_size == 0
    assert found.reason.startswith("joining requests changes answers: output 'y' differs by")
    assert not found.axes


def test_an_explicit_size_is_refused_if_it_changes_answers() -> None:
    with pytest.raises(OptionError, match="model 'm' cannot be batched: joining requests changes"):
        plan_batching("m", centred(), settings(max_batch_size=8))


def test_the_check_can_be_turned_off() -> None:
    instance = centred()
    found = plan_batching("m", instance, settings(max_batch_size=8, check_batching=False))
    assert (found.max_size, found.is_checked, instance.ran) == (8, False, [])
    assert found.limits_requests


def test_a_size_of_zero_means_no_batching() -> None:
    assert plan_batching("m", doubler(), settings(max_batch_size=0)).reason == "max_batch_size is 0"


def test_a_fixed_first_axis_is_not_batched() -> None:
    one = doubler(inputs=[TensorSpec("x", "FP32", (1, 2))])
    assert plan_batching("m", one, settings()).reason == "axis 0 of input 'x' has the fixed size 1"
    with pytest.raises(OptionError, match="axis 0 of input 'x' has the fixed size 1"):
        plan_batching("m", one, settings(max_batch_size=4))


def test_a_fixed_first_axis_is_batched_if_batches_are_filled_up_to_it() -> None:
    specs = [TensorSpec("x", "FP32", (4, 2))], [TensorSpec("y", "FP32", (4, 2))]

    def double(x: np.ndarray) -> dict[str, np.ndarray]:
        assert x.shape == (4, 2)
        return {"y": 2 * x}

    instance = FunctionInstance(*specs, double)
    found = plan_batching("m", instance, settings(padded_batch_sizes=[4]))
    assert (found.max_size, found.is_checked, found.limits_requests) == (4, True, True)
    assert served_inputs(instance, found, ())[0].shape == (-1, 2)
    assert served_outputs(instance, found, ())[0].shape == (-1, 2)


def test_the_maximum_is_a_fixed_size_too() -> None:
    found = plan_batching("m", doubler(), settings(max_batch_size=6, padded_batch_sizes=[8, 4]))
    assert found.layout.fixed_sizes == (4, 6)


def fail(x: np.ndarray) -> dict[str, np.ndarray]:
    raise ValueError("needs a face")


def test_a_model_that_random_feeds_do_not_fit_is_not_joined_unless_asked_for() -> None:
    found = plan_batching("m", doubler(function=fail), settings())
    assert found.max_size == 0
    assert found.reason == "it cannot be run with random feeds: needs a face"
    found = plan_batching("m", doubler(function=fail), settings(max_batch_size=8))
    assert (found.max_size, found.is_checked) == (8, False)


TOKENS = [
    TensorSpec("ids", "INT64", (-1, -1), ("batch", "length")),
    TensorSpec("mask", "INT64", (-1, -1), ("batch", "length")),
]


def embed(ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    hidden = (ids * 0.5).astype(np.float32)
    return {"hidden": hidden, "mean": (hidden * mask).sum(1) / mask.sum(1)}


def embedder(function: Any = embed) -> FunctionInstance:
    outputs = [TensorSpec("hidden", "FP32", (-1, -1)), TensorSpec("mean", "FP32", (-1,))]
    return FunctionInstance(TOKENS, outputs, function)


PADDING = {"ids": {"mask": "mask", "outputs": {"hidden": 1}, "sizes": [16, 4]}}


def test_padding_is_planned_with_its_mask() -> None:
    instance = embedder()
    found = plan_batching("m", instance, settings(padding=PADDING))
    assert found.is_checked
    assert found.layout.padded["ids"] == PaddedInput(1, 0, (4, 16))
    assert found.layout.padded["mask"] == PaddedInput(1, 0, (4, 16))
    assert found.layout.cuts == {"hidden": (1, "ids")}
    ids, mask = served_inputs(instance, found, ())
    assert (ids.is_optional, mask.is_optional) == (False, True)


def test_outputs_with_the_padded_axis_are_cut_back() -> None:
    outputs = [
        TensorSpec("hidden", "FP32", (-1, -1), ("batch", "length")),
        TensorSpec("mean", "FP32", (-1,), ("batch",)),
    ]
    instance = FunctionInstance(TOKENS, outputs, embed)
    found = plan_batching("m", instance, settings(padding={"ids": {"mask": "mask"}}))
    assert found.is_checked
    assert found.layout.cuts == {"hidden": (1, "ids")}
    with pytest.raises(OptionError, match="name the outputs to cut back in padding's outputs"):
        plan_batching("m", embedder(), settings(padding={"ids": {"mask": "mask"}}))


def test_padding_has_no_warnings_when_it_is_written_out() -> None:
    given = settings(padding={"ids": {"mask": "mask"}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert given.model_dump()["padding"]["ids"]["value"] == 0.0


def test_padding_that_changes_answers_is_refused() -> None:
    def ignore_mask(ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        return {**embed(ids, mask), "mean": ids.mean(1)}

    with pytest.raises(OptionError, match="joining requests changes answers: output 'mean'"):
        plan_batching("m", embedder(ignore_mask), settings(padding=PADDING))


@pytest.mark.parametrize(
    ("padding", "message"),
    [
        ({"id": {}}, "the padding of model 'm' names 'id'\ndid you mean 'ids'?"),
        ({"ids": {"mask": "msk"}}, "the padding of model 'm' names 'msk'"),
        ({"ids": {"outputs": {"z": 1}}}, "the padding of model 'm' names 'z'"),
        ({"ids": {"axis": 0}}, "'ids' cannot be padded along axis 0"),
        ({"ids": {"axis": 2}}, "'ids' cannot be padded along axis 2"),
    ],
)
def test_padding_that_does_not_fit_is_refused(padding: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        plan_batching("m", embedder(), settings(padding=padding))
    assert str(raised.value).startswith(message)


def test_a_mask_has_two_axes_or_those_of_its_input() -> None:
    mask = TensorSpec("mask", "INT64", (-1, 1, 1, -1))
    instance = FunctionInstance([TOKENS[0], mask], embedder().outputs, embed)
    with pytest.raises(OptionError, match="the mask 'mask' of input 'ids' has 4 axes"):
        plan_batching("m", instance, settings(padding=PADDING))


def test_state_inputs_and_outputs_are_hidden() -> None:
    plan = plan_batching("m", doubler(), settings())
    assert served_inputs(doubler(), plan, {"x"}) == []
    assert served_outputs(doubler(), plan, {"y"}) == []
