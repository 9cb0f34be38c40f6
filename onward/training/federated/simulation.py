"""simulate: federated averaging of several clients, one after another in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward import settings
from onward.errors import OptionError
from onward.message_text import first_line
from onward.training.federated.averaging import ClientUpdate, average_updates
from onward.training.federated.local_training import LocalSettings, LocalTraining
from onward.training.federated.saved_rounds import SavedRounds, describe_round, rounds_of

Array = np.ndarray[Any, Any]
_SHARE = settings.above(0.0)


@dataclass(frozen=True)
class FederatedResult:
    """The averaged parameters after the last round, and a record of each round."""

    training: LocalTraining  # opened with these parameters: it evaluates, exports, saves
    parameters: list[Array]
    rounds: list[dict[str, Any]]


def simulate(
    artifacts: str | os.PathLike[str],
    clients: Mapping[str, Any] | Sequence[Any],
    *,
    rounds: int,
    local: LocalSettings | None = None,
    share: float = 1.0,
    held_out: Any = None,
    metrics: Sequence[str] = (),
    folder: str | os.PathLike[str] | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
) -> FederatedResult:
    """Train the model of these artifacts on the data of several clients, `rounds` times.

    `clients` is their data (what `open_data` reads, or a function that returns it), by name. In
    each round, `share` of them train, drawn by the seed of `local`. The averaged model is evaluated
    on `held_out`. With `folder`, every round is saved there, and a second call continues
    after the last one. A client that raises an error is left out of its round, and logged.
    """
    local = local or LocalSettings()
    rounds = settings.integer(1)("rounds", rounds)
    if _SHARE("share", share) > 1:
        raise settings.setting_error("share", "a number above 0, at most 1", share)
    named = clients if isinstance(clients, Mapping) else dict(enumerate(clients))
    data = {str(name): each for name, each in named.items()}
    if not data:
        raise OptionError("there are no clients\ngive the data of at least one")
    saved = SavedRounds(folder) if folder is not None else None
    training = (
        LocalTraining(artifacts, metrics=metrics)
        if saved is None
        else saved.open(artifacts, metrics=metrics)
    )
    history, parameters = rounds_of(training), training.parameters
    for number in range(len(history) + 1, rounds + 1):
        updates, failures = [], {}
        for name in _choose(list(data), share, local.seed, number):
            try:
                result = training.fit(parameters, _open(data[name]), local, round_number=number)
                updates.append(ClientUpdate(name, *result))
            except Exception as error:  # whatever a client's data raises is that client's failure
                failures[name] = first_line(error)
        averaged = average_updates(updates, parameters, failures)
        parameters = averaged.parameters
        training.set_parameters(parameters)
        record = describe_round(number, averaged)
        if held_out is not None:
            found = training.evaluate(parameters, held_out).metrics
            record |= {f"held_out_{name}": value for name, value in found.items()}
        if saved is not None:
            saved.save(training, record)
        history.append(record)
        if on_round is not None:
            on_round(record)
    return FederatedResult(training, parameters, history)


def _choose(names: Sequence[str], share: float, seed: int, number: int) -> list[str]:
    """The clients of a round: a share of them, at least one, in their order."""
    count = max(1, round(share * len(names)))
    if count == len(names):
        return list(names)
    drawn = np.random.default_rng((seed, number)).permutation(len(names))[:count]
    return [names[i] for i in sorted(drawn)]


def _open(data: Any) -> Any:
    return data() if callable(data) else data
