"""ReportFacts: what a report shows in addition to the files of the run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from onward.runner.events import Evaluation
    from onward.runner.plan.training_plan import ChosenSetting


@dataclass(frozen=True)
class ReportFacts:
    """What only the run itself knows; all else is read from run.json, metrics.csv and command.txt.

    >>> facts = ReportFacts({"epochs": 5}, trained_parameters=120, all_parameters=4_000)
    >>> facts.classes
    ()
    """

    config: Mapping[str, Any]  # every setting, as TrainConfig.model_dump() gives them
    choices: Sequence[ChosenSetting] = ()
    evaluation: Evaluation | None = None  # of the exported weights
    classes: Sequence[Any] = ()  # of a classifier, by number
    trained_parameters: int = 0
    all_parameters: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)  # {"training rows": 800}
    roc: tuple[ArrayLike, ArrayLike] | None = None  # false and true positive rates, of two classes
