"""The states of the random number generators: Python's, numpy's and torch's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def get_random_states() -> tuple[Any, ...]:
    """The states of Python's, numpy's and torch's generators, and CUDA's if there is one.

    >>> states = get_random_states()
    >>> before = torch.rand(2)
    >>> set_random_states(states)
    >>> torch.equal(torch.rand(2), before)
    True
    """
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda


def set_random_states(states: tuple[Any, ...]) -> None:
    """Set the generators to states of `get_random_states`."""
    python, numpy, cpu, cuda = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda)
