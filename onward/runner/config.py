"""TrainConfig: every setting of `onward train`, with its name, its default and its explanation.

The same names are flags of the command line (`--learning-rate`), keys of a TOML or YAML file, and
keywords of `onward.train`. pydantic checks types; `make_settings` makes one clear error of what it
finds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from onward.configs.check_settings import make_settings
from onward.errors import OptionError

OptimizerName = Literal[
    "sgd", "adam", "adamw", "lamb", "rmsprop", "adagrad", "adafactor", "lion", "muon"
]
LossName = Literal[
    "auto", "cross_entropy", "bce_with_logits", "mse", "l1", "huber", "smooth_l1", "kl", "cosine",
    "output",
]  # fmt: skip
PrecisionName = Literal["none", "auto", "bf16", "fp16", "bfloat16", "float16"]
ScheduleName = Literal["constant", "linear", "cosine", "one_cycle"]
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Strength = Annotated[float, Field(ge=0, le=1)]


def _setting(group: str, default: Any, explanation: str, **checks: Any) -> Any:
    """A field; `group` is its heading in the help."""
    return Field(default, description=explanation, json_schema_extra={"group": group}, **checks)


DATA, LEARN, MODEL, WATCH, RUN = "Data", "Learning", "Model", "Evaluation", "Run"
TEAM = "Several processes"
CHARACTERS = "characters"  # of the setting `tokenizer`: a token for each character


class TrainConfig(BaseModel):
    """The settings of a run.

    >>> config = make_config(epochs=5, learning_rate=0.01)
    >>> config.epochs, config.optimizer
    (5, 'adamw')
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )
    help_command: ClassVar[str] = "onward train --help"

    # -- data
    model: str | None = _setting(RUN, None, "The model file.")
    data: str | list[str] | None = _setting(DATA, None, "A file, a folder, or a list of files.")
    target: str | None = _setting(
        DATA,
        None,
        "The column that the model should predict, or several of numbers (a+b); found by its name "
        "if left out.",
    )
    inputs: dict[str, list[str]] | None = _setting(
        DATA, None, "Which columns feed which input of the model, such as image=pixels."
    )
    ignore_columns: list[str] = _setting(DATA, [], "Columns to leave out, such as an id.")
    validation: str | None = _setting(
        DATA, None, "Data to evaluate on; without it, rows are held out from the data."
    )
    validation_split: Share = _setting(
        DATA, 0.1, "The share of rows that is held out for evaluation; 0: none."
    )
    types: dict[str, str] | None = _setting(
        DATA, None, "Types of columns (int, float, bool, text), such as zip=text."
    )
    delimiter: str | None = _setting(
        DATA, None, "The character between the fields of a CSV file; found if left out."
    )
    header: bool | None = _setting(
        DATA,
        None,
        "CSV: the first line has the names of the columns; if left out, found by the types of the "
        "rows below it.",
    )
    block: Count | None = _setting(
        DATA, None, "Text: the tokens of a row; the model's length if left out."
    )
    tokenizer: str | None = _setting(
        DATA,
        None,
        "Text: a tokenizer.json; the one next to the model if left out. characters: a token for "
        "each character.",
    )
    skip_broken: bool = _setting(DATA, False, "Images: leave out files that cannot be read.")
    standardize: bool | None = _setting(
        DATA, None, "Scale numbers to mean 0 and deviation 1; by default, columns of a table are."
    )
    row_weights: str | None = _setting(
        DATA, None, "The column that says how much each row counts in training."
    )
    balance: bool = _setting(DATA, False, "Train on rows of every class equally often.")
    flip: bool = _setting(DATA, False, "Images: mirror left to right at random.")
    crop: Annotated[int, Field(ge=0)] = _setting(DATA, 0, "Images: shift by up to N pixels.")
    brightness: Strength = _setting(DATA, 0.0, "Images: change the brightness by up to this share.")
    contrast: Strength = _setting(DATA, 0.0, "Images: change the contrast by up to this share.")
    saturation: Strength = _setting(DATA, 0.0, "Images: change the saturation by up to this share.")
    mixup: Annotated[float, Field(ge=0)] = _setting(
        DATA, 0.0, "Images: blend pairs, with shares drawn from Beta(N, N); 0: off."
    )
    data_threads: Annotated[int, Field(ge=0)] = _setting(
        DATA, 1, "Threads that read batches ahead."
    )

    # -- learning
    loss: LossName = _setting(
        LEARN, "auto", "The loss; auto: the one that fits the model and the target."
    )
    label_smoothing: Share = _setting(LEARN, 0.0, "Label smoothing of the cross entropy.")
    ignore_index: int | None = _setting(
        LEARN, None, "A label that is left out of the loss and the metrics."
    )
    epochs: Count = _setting(LEARN, 3, "Passes over the data.")
    max_steps: Count | None = _setting(LEARN, None, "Stop after this number of steps.")
    batch_size: Count | Literal["auto"] = _setting(
        LEARN, 32, "Rows of a batch; auto: the fastest that fits the memory."
    )
    gradient_accumulation_steps: Count = _setting(
        LEARN, 1, "Batches whose gradients are accumulated for one step."
    )
    optimizer: OptimizerName = _setting(LEARN, "adamw", "The optimizer.")
    learning_rate: Positive | Literal["auto"] | None = _setting(
        LEARN, None, "The optimizer's usual one if left out; auto: found by a range test."
    )
    weight_decay: Annotated[float, Field(ge=0)] | None = _setting(
        LEARN, None, "Weight decay; the optimizer's usual one if left out."
    )
    state_dtype: Literal["fp32", "bf16"] = _setting(
        LEARN, "fp32", "The type of the optimizer's state; bf16: half the memory."
    )
    schedule: ScheduleName = _setting(
        LEARN, "cosine", "How the learning rate changes over the run."
    )
    warmup: Share = _setting(
        LEARN, 0.0, "The share of steps in which the learning rate rises from 0."
    )
    max_grad_norm: Positive | None = _setting(
        LEARN, None, "Clip the gradients to this global norm."
    )
    ema: Share | None = _setting(
        LEARN, None, "Export a moving average of the weights, with this decay (0.999)."
    )
    seed: Annotated[int, Field(ge=0)] = _setting(
        LEARN, 0, "The seed of shuffling, dropout, augmentation and new weights."
    )

    # -- the model
    output: str | None = _setting(
        MODEL,
        None,
        "The model's output that is trained, if it has several; else the one with the target's "
        "name, or the first.",
    )
    freeze: list[str] = _setting(
        MODEL, [], "Weights that are not trained: names or patterns (encoder.*)."
    )
    train_only: list[str] | None = _setting(
        MODEL, None, "The only weights that are trained: names or patterns."
    )
    new_head: Count | None = _setting(
        MODEL, None, "Replace the last layer by a new one with N outputs."
    )
    lora: Count | None = _setting(
        MODEL, None, "Train adapters of rank N (LoRA) instead of the weights."
    )
    lora_targets: list[str] = _setting(
        MODEL, ["*"], "The weights or nodes that get adapters: names or patterns."
    )
    lora_alpha: Positive | None = _setting(
        MODEL, None, "The scale of the adapters, times their rank; the rank if left out."
    )
    lora_dropout: Share = _setting(MODEL, 0.0, "The share of dropout before the adapters.")
    dora: bool = _setting(MODEL, False, "Train magnitudes as well as adapters (DoRA).")
    keep_adapter: bool = _setting(MODEL, False, "Also save the adapters as a file of their own.")
    freeze_batch_norm: bool = _setting(MODEL, False, "Keep BatchNormalization in inference mode.")
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None = _setting(
        MODEL, None, "The learning rate of a layer, as a share of the layer's after it."
    )
    unfreeze_every: Count | None = _setting(
        MODEL, None, "Train the last layer first, and one more layer every N steps."
    )
    quantization_aware: bool = _setting(
        MODEL, False, "Train with 8-bit rounding; export an int8 model."
    )

    # -- evaluation
    metrics: list[str] | None = _setting(
        WATCH, None, "What to measure (accuracy,f1,...); what fits the loss if left out."
    )
    evaluate_every: Count | None = _setting(
        WATCH, None, "Evaluate every N steps; after every epoch if left out."
    )
    monitor: str | None = _setting(
        WATCH, None, "The number that decides which weights are best; the first metric if left out."
    )
    patience: Count | None = _setting(
        WATCH, None, "Stop after N evaluations without an improvement."
    )
    sample_text: Annotated[int, Field(ge=0)] = _setting(
        WATCH, 0, "Language models: write N characters at each evaluation."
    )
    log_every: Count | None = _setting(
        WATCH,
        None,
        "The number of steps between two lines of metrics.csv; if left out, about 200 lines in a "
        "run, and one every 50 steps at least.",
    )
    tensorboard: bool = _setting(WATCH, False, "Write TensorBoard events.")
    track: list[Literal["mlflow", "wandb", "trackio"]] = _setting(
        WATCH, [], "Also report to mlflow, wandb or trackio."
    )
    profile: str | None = _setting(
        WATCH, None, "Profile these steps (100:120), as a page for a browser."
    )

    # -- several processes: those of onward.distributed.Parallel
    shard: Count = _setting(
        TEAM, 1, "Processes that hold one copy of the model together, each a part of it (ZeRO)."
    )
    zero: Annotated[int, Field(ge=1, le=3)] = _setting(
        TEAM, 3, "What is sharded: 1 the optimizer's state, 2 gradients too, 3 parameters too."
    )
    offload: bool = _setting(TEAM, False, "Keep the optimizer's state in the CPU's memory.")
    bucket: Count = _setting(
        TEAM, 4 << 20, "Bytes of gradients that are sent at a time, during the backward pass."
    )
    sync_batch_norm: bool = _setting(
        TEAM, False, "BatchNormalization over the batch of all processes, not of each."
    )
    compression: Literal["bfloat16", "float16", "int8", "powersgd", "topk"] | None = _setting(
        TEAM, None, "How gradients are sent; as they are if left out."
    )
    local_steps: Count | None = _setting(
        TEAM, None, "Average the weights every N steps, instead of gradients at each step."
    )
    logical_shards: Count | None = _setting(
        TEAM, None, "Add gradients of N parts of a batch in order: the same bits on any processes."
    )
    backend: str = _setting(
        TEAM, "auto", "gloo, nccl, mpi, ...; auto: nccl for GPUs, gloo for CPUs."
    )
    peer_timeout: Positive = _setting(
        TEAM, 600.0, "Seconds after which a process that does not answer is lost."
    )

    # -- the run
    provider: str | None = _setting(
        RUN, None, "The engine (cpu, cuda, torch, ...); auto: the fastest one here."
    )
    threads: Annotated[int, Field(ge=0)] = _setting(
        RUN, 0, "Threads of the engine; 0: one per core."
    )
    mixed_precision: PrecisionName = _setting(
        RUN, "none", "Compute in 16 bits; auto: if the provider is faster with it."
    )
    memory_budget: str | None = _setting(
        RUN, None, "Bytes that activations may take: 8GiB, or 50% of what they take without."
    )
    memory_level: Annotated[int, Field(ge=0, le=2)] | None = _setting(
        RUN, None, "What the backward pass computes again: 0 nothing, 1 what is cheap, 2 all."
    )
    save_every: Count | None = _setting(
        RUN,
        None,
        "Write a checkpoint every N steps; if left out, at the end of an epoch, 30 seconds after "
        "the last one at the earliest.",
    )
    keep: Count = _setting(RUN, 2, "Keep the N newest checkpoints, and the best one.")
    on_nan: Literal["stop", "skip"] = _setting(
        RUN, "stop", "If gradients are not finite: stop, or skip the batch."
    )
    export: Literal["best", "last"] = _setting(RUN, "best", "Export the best weights, or the last.")
    runs: str = _setting(RUN, "runs", "The folder of all runs.")
    name: str | None = _setting(
        RUN, None, "The name of the run's folder; the model's name and a number if left out."
    )


TEAM_SETTINGS = tuple(
    name
    for name, field in TrainConfig.model_fields.items()
    if field.json_schema_extra == {"group": TEAM}
)


def check_sharding(config: TrainConfig, given: Collection[str] = ()) -> None:
    """Refuse settings of shards where there are none; `given` are those named by the user.

    >>> check_sharding(make_config(zero=2))
    Traceback (most recent call last):
    onward.errors.OptionError: zero says what processes share, but shard is 1: nothing is shared
    give shard too: the processes that hold one copy together (--shard 2)
    """
    if config.shard > 1:
        return
    for name in ("zero", "offload"):
        if name in given or getattr(config, name) != TrainConfig.model_fields[name].default:
            raise OptionError(
                f"{name} says what processes share, but shard is 1: nothing is shared\n"
                "give shard too: the processes that hold one copy together (--shard 2)"
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
    return make_settings(TrainConfig, *layers, settings)
