"""The average of the weights is torch's AveragedModel with an EMA."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import get_ema_avg_fn

from onward.errors import OptionError
from onward.optimizers.adafactor import Adafactor
from onward.optimizers.ema import EMA
from onward.optimizers.optimizer import Optimizer
from onward.optimizers.sgd import SGD
from onward.optimizers.update_models import flat_update
from tests.optimizers.case import VECTOR, by_graph, gradients, passes, start


@pytest.mark.parametrize("warm_up", [False, True])
@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), Adafactor()], ids=repr)
def test_ema_matches_torch(optimizer: Optimizer, warm_up: bool) -> None:
    average = EMA(decay=0.9, warm_up=warm_up)
    found = by_graph(optimizer, dtype="float64", average=average)
    kind = getattr(torch.optim, type(optimizer).__name__)
    p = torch.from_numpy(start(VECTOR, "float64")["w"])
    peer, expected = kind([p], lr=optimizer.lr), p.clone()
    for step, given in enumerate(gradients(VECTOR, "float64"), 1):
        p.grad = torch.from_numpy(given["w"])
        peer.step()
        decay = min(0.9, (1 + step) / (10 + step)) if warm_up else 0.9
        expected = get_ema_avg_fn(decay)(expected, p, torch.tensor(1))
    np.testing.assert_allclose(found["w.average"], expected.numpy(), rtol=1e-10)
    np.testing.assert_allclose(found["w"], p.numpy(), rtol=1e-10)


def test_ema_takes_three_passes() -> None:
    for warm_up in (False, True):
        model = flat_update(SGD(), average=EMA(warm_up=warm_up))
        assert passes(model) == passes(flat_update(SGD())) + 3


def test_a_wrong_decay_is_refused() -> None:
    with pytest.raises(OptionError, match=r"EMA\.decay must be a number from 0 to 1, not 1\.5"):
        EMA(decay=1.5)
