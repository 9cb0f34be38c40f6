"""Artifacts made once for all tests of the API; tests do not change them."""

from __future__ import annotations

import pytest

from tests.training.api.made import Folder, make


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Every parameter is trained."""
    return make(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="session")
def partly(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The first layer is frozen."""
    return make(
        tmp_path_factory.mktemp("partly"),
        requires_grad=["fc2.weight", "fc2.bias"],
        frozen_params=["fc1.weight", "fc1.bias"],
        additional_output_names=["output"],
    )
