"""The providers of a session: short and full names, with options, in every function."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onward
from onward.errors import OptionError, ProviderMissing
from onward.measure.tuning.tuning_options import TuningOptions
from onward.optimizers.sgd import SGD
from onward.providers.choose import REFERENCE, full_name, mentions_auto, named_options
from tests.models import mlp

CPU = "CPUExecutionProvider"


def test_inference_session_takes_short_names() -> None:
    session = onward.InferenceSession(mlp(), providers=["CPU"])
    assert session.get_providers() == [CPU]
    session.set_providers([("reference", {})])
    assert session.get_providers() == [REFERENCE]
    session.set_providers(["cpu"], [{}])
    assert session.get_providers() == [CPU]


@pytest.mark.parametrize("name", ["cpu", "Reference"])
def test_training_session_takes_short_names(name: str) -> None:
    session = onward.TrainingSession(mlp(), onward.losses.MSE(), SGD(), providers=[name])
    x, target = np.ones((3, 4), np.float32), np.zeros((3, 2), np.float32)
    session.step({"x": x, "target": target})
    assert session.steps == 1


def test_tuning_takes_short_names() -> None:
    assert TuningOptions(providers=["cpu", "REFERENCE"]).providers == [CPU, REFERENCE]
    with pytest.raises(OptionError, match="no provider 'gpuu'\nthis machine has cpu, "):
        TuningOptions(providers=["gpuu"])
    with pytest.raises(ProviderMissing, match="auto cannot try CoreMLExecutionProvider: not on"):
        TuningOptions(providers=["coreml"])


def test_memory_plan_and_profile_take_short_names(tmp_path: Path) -> None:
    onward.save(mlp(), tmp_path / "m.onnx")
    profile = onward.profile_model(tmp_path / "m.onnx", providers=[("cpu", {})], iterations=2)
    assert list(profile.ceilings) == [CPU]


def test_options_by_full_name() -> None:
    given = named_options(["torch", ("OpenVINO", {"device": "CPU"})])
    assert given == {full_name("torch"): {}, full_name("openvino"): {"device": "CPU"}}


@pytest.mark.parametrize("providers", ["auto", "AUTO", ["auto"], [("Auto", {"seconds": 1})]])
def test_mentions_auto_in_any_case(providers: object) -> None:
    assert mentions_auto(providers)
    assert not mentions_auto(["cpu", None, ()])
