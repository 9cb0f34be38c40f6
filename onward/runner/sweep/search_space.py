"""Search spaces: for each setting that is searched, a range of numbers or a list of values."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onward.configs.setting_kind import setting_kind
from onward.configs.setting_text import check_setting, read_setting
from onward.errors import OptionError
from onward.runner.config import TrainConfig

_RANGE = ".."
_NOT_SEARCHED = {  # why the trials could not be compared, or would overwrite each other
    "monitor": "it is the number that trials are compared by",
    "validation": "trials are compared on the same rows",
    "validation_split": "trials are compared on the same rows",
    "runs": "trials have the sweep's own folder",
    "name": "trials are named by their number",
}


@dataclass(frozen=True)
class NumberRange:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    whole: bool
    log: bool = False
    step: float | None = None

    def distribution(self, optuna: Any) -> Any:
        """The range as Optuna's distribution."""
        distributions = optuna.distributions
        if self.whole:
            step = 1 if self.step is None else int(self.step)
            return distributions.IntDistribution(int(self.low), int(self.high), self.log, step)
        return distributions.FloatDistribution(self.low, self.high, self.log, self.step)

    def decode(self, value: Any) -> Any:
        return value

    def encode(self, value: Any) -> Any:
        return value

    def __str__(self) -> str:
        kind = ":log" if self.log else "" if self.step is None else f":step={self.step:g}"
        return f"{self.low:g}{_RANGE}{self.high:g}{kind}"


@dataclass(frozen=True)
class ValueList:
    """Values to choose from; Optuna gets them as JSON, because it keeps numbers and texts only."""

    values: tuple[Any, ...]

    def distribution(self, optuna: Any) -> Any:
        """The values as Optuna's distribution."""
        return optuna.distributions.CategoricalDistribution(tuple(map(json.dumps, self.values)))

    def decode(self, value: Any) -> Any:
        return json.loads(value)

    def encode(self, value: Any) -> Any:
        return json.dumps(value)

    def __str__(self) -> str:
        return ",".join(map(show_value, self.values))


SearchSpace = Mapping[str, NumberRange | ValueList]


def show_value(value: Any) -> str:
    """A setting's value as the command line writes it.

    >>> show_value(None), show_value(True), show_value(0.00012345678), show_value(["a", "b"])
    ('none', 'true', '0.000123457', 'a+b')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "+".join(map(str, value))
    return str(value)


def read_search(search: Mapping[str, Any]) -> dict[str, NumberRange | ValueList]:
    """The search space of a mapping: texts, or lists of values.

    >>> space = read_search({"learning_rate": "1e-4..1e-1:log", "batch_size": [16, 32]})
    >>> space["learning_rate"].log, space["batch_size"].values
    (True, (16, 32))
    """
    return {str(name): _read_one(str(name), given) for name, given in search.items()}


def read_search_texts(texts: Sequence[str], flag: str = "--search") -> dict[str, str]:
    """NAME=SPACE texts of the command line as a mapping.

    >>> read_search_texts(["batch_size=16,32", "epochs=1..5"])
    {'batch_size': '16,32', 'epochs': '1..5'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, space = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not space:
            raise OptionError(
                f"{flag} takes NAME=VALUES, not {text!r}\n"
                f"write {flag} batch_size=16,32 or {flag} learning_rate=1e-4..1e-1:log"
            )
        if name in found:
            raise OptionError(f"{flag} has {name} twice\nwrite its values in one, after commas")
        found[name] = space
    return found


def _read_one(name: str, given: Any) -> NumberRange | ValueList:
    setting_kind(TrainConfig, name)  # refuses an unknown name
    if name in _NOT_SEARCHED:
        raise OptionError(f"{name} cannot be searched: {_NOT_SEARCHED[name]}")
    if (
        isinstance(given, str)
        and _RANGE in given
        and setting_kind(TrainConfig, name).number is not None
    ):
        return _read_range(name, given)
    if isinstance(given, str):
        values = _read_values(name, given)
    elif isinstance(given, (list, tuple)):
        values = [check_setting(TrainConfig, name, value) for value in given]
    else:
        raise OptionError(
            f"the values of {name} must be a list or a text, not {given!r}\n"
            f"give {name}=[...], or a range of numbers such as '1..10'"
        )
    different = {json.dumps(value): value for value in values}
    if not different:
        raise OptionError(f"{name} has no values to search\ngive at least one")
    return ValueList(tuple(different.values()))


def _read_values(name: str, text: str) -> list[Any]:
    """Values between commas; an error also says how a range of numbers is written."""
    try:
        return [read_setting(TrainConfig, name, part.strip()) for part in text.split(",")]
    except OptionError as error:
        if setting_kind(TrainConfig, name).number is None:
            raise
        first = str(error).partition("\n")[0]
        hint = "write values between commas, or a range: LOW..HIGH, LOW..HIGH:log"
        raise OptionError(f"{first}\n{hint}") from None


def _read_range(name: str, text: str) -> NumberRange:
    """A range such as 1e-4..1e-1:log or 8..64:step=8; both ends must be valid values."""
    ends, *options = text.split(":")
    low, high = (read_setting(TrainConfig, name, end.strip()) for end in ends.split(_RANGE, 1))
    if not all(isinstance(end, (int, float)) for end in (low, high)):
        raise OptionError(f"{name}: the ends of {ends!r} must be numbers")
    if not low < high:
        raise OptionError(f"{name}: {ends!r} is empty\nwrite the smaller number first")
    log, step = False, None
    for option in options:
        key, _, value = option.partition("=")
        if option == "log":
            log = True
        elif key == "step" and _is_step(value, high - low):
            step = float(value)
        else:
            raise OptionError(
                f"{name}: {option!r} is not an option of a range\n"
                "write LOW..HIGH, LOW..HIGH:log or LOW..HIGH:step=N"
            )
    if log and (low <= 0 or step is not None):
        raise OptionError(f"{name}: a range with :log is above 0 and has no :step, not {text!r}")
    whole = setting_kind(TrainConfig, name).number is int
    if whole and step is not None and step != int(step):
        raise OptionError(f"{name}: the step of whole numbers is one too, not {step:g}")
    return NumberRange(low, high, whole, log, step)


def _is_step(text: str, width: float) -> bool:
    try:
        return 0 < float(text) <= width and math.isfinite(float(text))
    except ValueError:
        return False


def grid_points(space: SearchSpace) -> Iterator[dict[str, Any]]:
    """Every combination of values."""
    for name, values in space.items():
        if not isinstance(values, ValueList):
            raise OptionError(f"{name}: a grid needs a list of values, not the range {values}")
    lists = [values.values for values in space.values() if isinstance(values, ValueList)]
    for combination in itertools.product(*lists):
        yield dict(zip(space, combination))


def ablation_points(space: SearchSpace, base: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The base, then each change of one setting by itself."""
    start = {name: base[name] for name in space}
    yield start
    for name, values in space.items():
        if not isinstance(values, ValueList):
            raise OptionError(f"{name}: an ablation needs a list of values, not the range {values}")
        for value in values.values:
            if value != base[name]:
                yield {**start, name: value}


def with_base_values(space: SearchSpace, base: Mapping[str, Any]) -> dict[str, Any]:
    """The space with the base's own value first in each list."""
    return {
        name: ValueList((base[name], *(v for v in values.values if v != base[name])))
        if isinstance(values, ValueList)
        else values
        for name, values in space.items()
    }
