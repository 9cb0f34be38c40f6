"""Updates whose graph reports that it changed nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onward.training.api.optimizer_updates import ListUpdate
from tests.training.api.made import Folder, batch


class Refusing:
    """A fake graph whose flag is False: nothing was updated."""

    def run_unbound(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        assert feeds["learning_rate"].shape == (1,) and feeds["step"].tolist() == [3]
        return {"updated_flag": np.array([False])}


def test_update_with_a_false_flag_changes_nothing(whole: Folder) -> None:
    state, module, optimizer = whole.open()
    module(*batch())
    before = module.get_contiguous_parameters().numpy().copy()
    refusing = ListUpdate(Refusing(), state._state, state._state.trainable)  # type: ignore[arg-type]
    assert refusing.run(0.1, 3) is False
    optimizer._update = refusing
    optimizer._stored.step = 2
    optimizer.step()
    assert optimizer._stored.step == 2
    np.testing.assert_array_equal(module.get_contiguous_parameters().numpy(), before)
