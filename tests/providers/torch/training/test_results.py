"""TorchResults: copied to the host when they are accessed."""

from __future__ import annotations

from unittest import mock

import numpy as np
import torch

from onward.providers.torch.tensors import to_numpy
from onward.providers.torch.training.results import TorchResults


def test_numpy_results_are_copied_once_on_access() -> None:
    found = TorchResults({"loss": torch.tensor(2.0), "y": torch.ones(3)}, as_numpy=True)
    name = "onward.providers.torch.training.results.to_numpy"
    with mock.patch(name, side_effect=to_numpy) as read:
        assert len(found) == 2 and list(found) == ["loss", "y"]
        assert repr(found) == "TorchResults(loss, y)"
        assert read.call_count == 0
        assert isinstance(found["loss"], np.ndarray) and found["loss"] == 2.0
        assert found["loss"] is found["loss"]
        assert read.call_count == 1


def test_tensors_stay_tensors() -> None:
    loss = torch.tensor(2.0)
    assert TorchResults({"loss": loss}, as_numpy=False)["loss"] is loss
