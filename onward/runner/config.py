"""TrainConfig: every setting of `onward train`, with its name, its default and its explanation.

The same names are flags of the command line (`--learning-rate`), keys of a TOML or YAML file, and
keywords of `onward.train`. pydantic checks types; `check_config` makes one clear error of what it
finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from onward.errors import OptionError
from onward.message_text import suggest_names

OptimizerName = Literal[
    "sgd", "adam", "adamw", "lamb", "rmsprop", "adagrad", "adafactor", "lion", "muon"
]
LossName = Literal[
    "auto", "cross_entropy", "bce_with_logits", "mse", "l1", "huber", "smooth_l1", "kl", "cosine",
    "output",
]  # fmt: skip
ScheduleName = Literal["constant", "linear", "cosine", "one_cycle"]
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Strength = Annotated[float, Field(ge=0, le=1)]


def _setting(group: str, default: Any, explanation: str, **checks: Any) -> Any:
    """A field; `group` is its heading in the help."""
    return Field(default, description=explanation, json_schema_extra={"group": group}, **checks)


DATA, LEARN, MODEL, WATCH, RUN = "Data", "Learning", "Model", "Evaluation", "Run"


class TrainConfig(BaseModel):
    """The settings of a run.

    >>> config = make_config(epochs=5, learning_rate=0.01)
    >>> config.epochs, config.optimizer
    (5, 'adamw')
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )

    # -- data
    model: str | None = _setting(RUN, None, "The model file.")
    data: str | list[str] | None = _setting(DATA, None, "A file, a folder, or a list of files.")
    target: str | None = _setting(
        DATA, None, "The column that the model should predict; found by its name if left out."
    )
    inputs: dict[str, list[str]] | None = _setting(
        DATA, None, "The columns of each input of the model: {image: [pixels]}."
    )
    ignore_columns: list[str] = _setting(DATA, [], "Columns that are not used, such as an id.")
    validation: str | None = _setting(DATA, None, "Data to evaluate on; else rows are held out.")
    validation_split: Share = _setting(DATA, 0.1, "The share of rows that is held out; 0: none.")
    types: dict[str, str] | None = _setting(
        DATA, None, "Types of columns: int, float, bool or text, such as {zip: text}."
    )
    delimiter: str | None = _setting(DATA, None, "What separates the fields of a CSV file.")
    block: Count | None = _setting(
        DATA, None, "Tokens of a block of text; the model's length if left out."
    )
    skip_broken: bool = _setting(DATA, False, "Leave broken images out.")
    standardize: bool | None = _setting(
        DATA, None, "Numbers to mean 0 and standard deviation 1; None: where they are columns."
    )
    balance: bool = _setting(DATA, False, "Show rows of every class equally often.")
    flip: bool = _setting(DATA, False, "Images: mirror left to right at random.")
    crop: Annotated[int, Field(ge=0)] = _setting(DATA, 0, "Images: shift by up to N pixels.")
    brightness: Strength = _setting(DATA, 0.0, "Images: change the brightness by up to this share.")
    contrast: Strength = _setting(DATA, 0.0, "Images: change the contrast by up to this share.")
    saturation: Strength = _setting(DATA, 0.0, "Images: change the saturation by up to this share.")
    mixup: Annotated[float, Field(ge=0)] = _setting(
        DATA, 0.0, "Images: mix pairs, with shares from Beta(N, N)."
    )
    data_threads: Annotated[int, Field(ge=0)] = _setting(DATA, 1, "Threads that read ahead.")

    # -- learning
    loss: LossName = _setting(LEARN, "auto", "What is minimised.")
    label_smoothing: Share = _setting(LEARN, 0.0, "Of cross entropy.")
    ignore_index: int | None = _setting(LEARN, None, "A label that does not count.")
    epochs: Count = _setting(LEARN, 3, "Passes over the data.")
    max_steps: Count | None = _setting(LEARN, None, "Stop after this number of updates.")
    batch_size: Count | Literal["auto"] = _setting(
        LEARN, 32, "Rows of a step; auto: the largest that fits the memory."
    )
    gradient_accumulation_steps: Count = _setting(LEARN, 1, "Batches of one update.")
    optimizer: OptimizerName = _setting(LEARN, "adamw", "The optimizer.")
    learning_rate: Positive | Literal["auto"] | None = _setting(
        LEARN, None, "None: the optimizer's usual one; auto: found by a range test."
    )
    weight_decay: Annotated[float, Field(ge=0)] | None = _setting(
        LEARN, None, "None: the optimizer's usual one."
    )
    schedule: ScheduleName = _setting(LEARN, "cosine", "How the learning rate falls.")
    warmup: Share = _setting(LEARN, 0.0, "The share of steps in which the learning rate rises.")
    max_grad_norm: Positive | None = _setting(LEARN, None, "Clip the gradients to this norm.")
    ema: Share | None = _setting(LEARN, None, "Export an average of the weights, of this decay.")
    seed: Annotated[int, Field(ge=0)] = _setting(LEARN, 0, "Of shuffling, dropout and new weights.")

    # -- the model
    freeze: list[str] = _setting(MODEL, [], "Weights that stay: names or patterns (encoder.*).")
    train_only: list[str] | None = _setting(MODEL, None, "The only weights that are trained.")
    new_head: Count | None = _setting(MODEL, None, "Replace the last layer by one of N outputs.")
    lora: Count | None = _setting(MODEL, None, "Train adapters of rank N, not the weights.")
    lora_targets: list[str] = _setting(MODEL, ["*"], "The weights or nodes that have adapters.")
    lora_alpha: Positive | None = _setting(MODEL, None, "Scale of adapters times rank; None: rank.")
    lora_dropout: Share = _setting(MODEL, 0.0, "Dropout before the adapters.")
    dora: bool = _setting(MODEL, False, "Adapters with magnitudes (DoRA).")
    keep_adapter: bool = _setting(MODEL, False, "Also save the adapters as a file of their own.")
    freeze_batch_norm: bool = _setting(MODEL, False, "Keep the statistics of BatchNormalization.")
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None = _setting(
        MODEL, None, "The learning rate of a layer, as a share of the next one's."
    )
    unfreeze_every: Count | None = _setting(
        MODEL, None, "Train the last layer first, and one more every N steps."
    )
    quantization_aware: bool = _setting(MODEL, False, "Train with 8-bit rounding; export int8.")

    # -- evaluation
    metrics: list[str] | None = _setting(WATCH, None, "None: those that fit the loss.")
    evaluate_every: Count | None = _setting(WATCH, None, "Steps; None: after every epoch.")
    monitor: str | None = _setting(
        WATCH, None, "The number that chooses the best weights; None: the first metric."
    )
    patience: Count | None = _setting(
        WATCH, None, "Stop after N evaluations without an improvement."
    )
    sample_text: Annotated[int, Field(ge=0)] = _setting(
        WATCH, 0, "Language models: write N characters at each evaluation."
    )
    log_every: Count = _setting(WATCH, 10, "Steps between two lines of metrics.csv.")
    tensorboard: bool = _setting(WATCH, False, "Write TensorBoard events.")
    track: list[Literal["mlflow", "wandb", "trackio"]] = _setting(
        WATCH, [], "Also report to mlflow, wandb or trackio."
    )
    profile: str | None = _setting(
        WATCH, None, "Profile these steps (100:120); the page opens in a browser."
    )

    # -- the run
    provider: str | None = _setting(RUN, None, "cpu, torch, ...; auto: the fastest here.")
    threads: Annotated[int, Field(ge=0)] = _setting(RUN, 0, "Of the engine; 0: one per core.")
    mixed_precision: Literal["none", "auto", "bfloat16", "float16"] = _setting(
        RUN, "none", "Compute in 16 bits; auto: where the provider is faster so."
    )
    save_every: Count | None = _setting(RUN, None, "Steps between checkpoints; None: each epoch.")
    keep: Count = _setting(RUN, 2, "The number of newest checkpoints that are kept.")
    on_nan: Literal["stop", "skip"] = _setting(
        RUN, "stop", "Where gradients are not finite: stop, or leave the batch out."
    )
    export: Literal["best", "last"] = _setting(RUN, "best", "The weights that are exported.")
    runs: str = _setting(RUN, "runs", "The folder of all runs.")
    name: str | None = _setting(RUN, None, "The run's folder; None: the model's name and a number.")


_OUTSIDE = frozenset(
    {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"}
)


def make_config(*layers: Mapping[str, Any], **settings: Any) -> TrainConfig:
    """A checked config; later layers (a file, then flags, then keywords) replace earlier ones.

    >>> make_config({"epochs": 2}, epochs=9).epochs
    9
    >>> make_config(learning_rat=0.1)
    Traceback (most recent call last):
    onward.errors.OptionError: there is no setting 'learning_rat'
    did you mean 'learning_rate'?
    """
    merged: dict[str, Any] = {}
    for layer in (*layers, settings):
        merged.update(layer)
    known = TrainConfig.model_fields
    for name in merged:
        if name not in known:
            raise OptionError(f"there is no setting {name!r}\n{suggest_names(str(name), known)}")
    try:
        return TrainConfig.model_validate(merged)
    except pydantic.ValidationError as error:
        raise _explain(error, merged) from None


def changed_settings(config: TrainConfig) -> dict[str, Any]:
    """The settings that are not the default."""
    return config.model_dump(exclude_defaults=True)


def _explain(error: pydantic.ValidationError, given: Mapping[str, Any]) -> OptionError:
    """The first problem in two lines: the setting and its value, then what it must be."""
    found = error.errors(include_url=False)
    first = found[0]
    name = str(first["loc"][0])
    choices = _choices(TrainConfig.model_fields[name].annotation)
    value = given.get(name)
    outside = next((each for each in found if each["type"] in _OUTSIDE), None)
    if choices and outside is not None:  # a number, but not one that is allowed
        words = " or ".join(map(repr, choices))
        return OptionError(f"{name} cannot be {value!r}: {_law(outside)}, or {words}")
    if choices and isinstance(value, str):
        return OptionError(f"{name} cannot be {value!r}\n{suggest_names(value, choices)}")
    if choices and isinstance(value, list):
        wrong = next((str(each) for each in value if each not in choices), "")
        return OptionError(f"{name} cannot be {wrong!r}\n{suggest_names(wrong, choices)}")
    return OptionError(f"{name} cannot be {value!r}: {_law(first)}\nsee: onward train --help")


def _law(problem: Any) -> str:
    """What a value must be, in pydantic's words."""
    text = str(problem["msg"]).replace("Input should be", "it must be")
    return text.removeprefix("Value error, ")


def _choices(annotation: Any) -> list[str]:
    """The names that an annotation allows: those of its Literals."""
    arguments = get_args(annotation)
    if getattr(annotation, "__origin__", None) is Literal:
        return [each for each in arguments if isinstance(each, str)]
    return [name for each in arguments for name in _choices(each)]
