"""Which column the model should predict: by setting, by its name, or by what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onward.configs.setting_text import JOIN
from onward.errors import ColumnMissing, DataError
from onward.message_text import list_names, suggest_names
from onward.runner.config import TrainConfig
from onward.runner.data.dataset import UNREADABLE, Column, choose_columns
from onward.runner.plan.model_shapes import ModelPorts
from onward.runner.plan.training_plan import ChosenSetting

TARGET_NAMES = (
    "target", "targets", "label", "labels", "class", "classes", "y", "next_tokens", "category",
    "outcome", "answer",
)  # fmt: skip
RECONSTRUCTIONS = ("reconstruction", "reconstructed", "decoded")  # outputs of autoencoders


def used_columns(config: TrainConfig, columns: Mapping[str, Column]) -> dict[str, Column]:
    """The columns without those that the config ignores, and those that cannot be read."""
    for name in config.ignore_columns:
        if name not in columns:
            hint = suggest_names(name, columns, "its columns are")
            raise ColumnMissing(f"ignore_columns: the data has no column {name!r}\n{hint}")
    named = [name for name in columns if name == config.target or name in _given_inputs(config)]
    choose_columns(columns, named, "the data")  # refuses those that cannot be read
    return {
        name: each
        for name, each in columns.items()
        if name not in (*config.ignore_columns, config.row_weights) and each.dtype != UNREADABLE
    }


def find_target(
    config: TrainConfig, columns: Mapping[str, Column], ports: ModelPorts, paired: str = ""
) -> tuple[str | None, ChosenSetting | None]:
    """The target by setting or by name; None: it is among the columns that no input takes.

    `paired` is the second of a pair. An autoencoder needs it only if it has the output's shape.
    """
    if config.target is not None:
        if config.target not in columns:
            listed = [each.strip() for each in config.target.split(",")]
            if len(listed) > 1 and all(each in columns for each in listed):
                raise ColumnMissing(
                    f"the data has no column {config.target!r} (target)\n"
                    f"several columns are joined with +: target={JOIN.join(listed)!r}"
                )
            hint = suggest_names(config.target, columns, "its columns are")
            raise ColumnMissing(f"the data has no column {config.target!r} (target)\n{hint}")
        return config.target, ChosenSetting("target", config.target, "as given")
    if config.loss == "output" or (
        is_reconstruction(ports) and not (paired in columns and columns[paired].shape)
    ):
        return None, None
    if paired in columns:
        return paired, ChosenSetting("target", paired, "the second of the pair")
    fed = {each.name for each in ports.inputs} | _given_inputs(config)
    for output in ports.endings:
        name = output.output.name
        if name in columns and name not in fed:
            return name, ChosenSetting("target", name, "the name of an output")
    for known in TARGET_NAMES:
        for name in columns:
            if name.lower() == known and name not in fed:
                return name, ChosenSetting("target", name, "by its name")
    return None, None


def other_targets(
    config: TrainConfig, columns: Mapping[str, Column], ports: ModelPorts, target: str | None
) -> list[str]:
    """The columns called as outputs that are not trained: answers, which no input may read."""
    fed = {each.name for each in ports.inputs} | _given_inputs(config)
    answers = {each.output.name for each in ports.endings} - fed
    return [name for name in columns if name in answers and name != target]


def leftover_target(
    left: Sequence[str], ports: ModelPorts, columns: Sequence[str]
) -> tuple[str | None, ChosenSetting]:
    """The only column that no input takes; None, the input itself, for an autoencoder."""
    if len(left) == 1:
        return left[0], ChosenSetting("target", left[0], "the only column that no input takes")
    losses = [each.output.name for each in ports.endings if not each.output.shape]
    if losses and not left and not is_reconstruction(ports):
        raise DataError(
            f"the inputs take every column, and output {losses[0]!r} is one number\n"
            "if it is the loss, say so: loss='output' (--loss output)"
        )
    output = ports.scores.output
    if is_reconstruction(ports) or (not left and same_sizes(ports)):
        name = ports.inputs[0].name
        return None, ChosenSetting(
            "target", name, f"output {output.name!r} has the shape of this input"
        )
    hint = (list(left) or list(columns))[-1]
    if len(left) > 1 and ports.scores.output.rest == (len(left),):
        hint = JOIN.join(left)
    raise DataError(
        "which column should the model predict? "
        + (f"no input takes {list_names(left)}" if left else "the inputs take every column")
        + f"\nsay it: target={hint!r}, or another one"
    )


def is_reconstruction(ports: ModelPorts) -> bool:
    """Whether the output is, by its name and its shape, the input again."""
    return ports.scores.output.name.lower() in RECONSTRUCTIONS and same_sizes(ports)


def same_sizes(ports: ModelPorts) -> bool:
    """Whether the first input has the shape of the trained output."""
    first = next((each for each in ports.inputs if each.is_float), None)
    return first is not None and first.rest == ports.scores.output.rest


def _given_inputs(config: TrainConfig) -> set[str]:
    return {column for listed in (config.inputs or {}).values() for column in listed}
