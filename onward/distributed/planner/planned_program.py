"""Compile the training program that is planned: the loss as `onward train` chooses it, no data."""

from __future__ import annotations

import os
from typing import Any

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.files import load
from onward.losses.loss import Loss
from onward.message_text import suggest_names
from onward.programs.build import build_program
from onward.programs.program import Program
from onward.programs.training_options import TrainingOptions
from onward.runner.config import TrainConfig, make_config
from onward.runner.plan.guess_loss import choose_loss
from onward.runner.plan.learning import make_optimizer
from onward.runner.plan.model_shapes import (
    ModelPorts,
    TensorPort,
    choose_loss_output,
    read_ports,
)
from onward.runner.plan.target_facts import TargetFacts

TARGET = "target"
PRECISIONS = {"fp32": None, "bf16": "bfloat16", "fp16": "float16"}


def open_planned_program(
    model: str | os.PathLike[str] | ir.Model,
    *,
    loss: str = "auto",
    optimizer: str = "adamw",
    precision: str = "fp32",
    state_dtype: str = "fp32",
) -> Program:
    """The program of a training run, which `onward train` with these settings would make."""
    if precision not in PRECISIONS:
        raise OptionError(
            f"there is no precision {precision!r}\n{suggest_names(precision, PRECISIONS)}"
        )
    config = make_config(loss=loss, optimizer=optimizer, state_dtype=state_dtype)
    opened = model if isinstance(model, ir.Model) else load(model, any_domain=True)
    chosen = choose_planned_loss(opened, config)
    updates, _ = make_optimizer(config)
    options = TrainingOptions(precision=PRECISIONS[precision])
    return build_program(opened, chosen, updates, options)


def choose_planned_loss(model: ir.Model, config: TrainConfig) -> Loss:
    """The loss of a config, or the one that fits the model's first output of floats.

    A single number is the model's own loss; scores of several classes are trained with cross
    entropy, and everything else with the mean squared error.
    """
    ports = read_ports(model)
    if config.loss in ("auto", "output"):
        ports = choose_loss_output(ports)
    port = ports.scores
    if config.loss == "auto" and _is_one_number(port.output):
        config = make_config(config.model_dump(exclude_unset=True), loss="output")
    facts = _invent_target(ports, config.loss)
    return choose_loss(config, port, facts, TARGET).loss


def _is_one_number(port: TensorPort) -> bool:
    return all(size == 1 for size in port.shape) and len(port.shape) < 2


def _invent_target(ports: ModelPorts, loss: str) -> TargetFacts | None:
    """A target that fits the output, as data would have it; None: of the output's own shape."""
    port = ports.scores.scores
    shape, rank = port.shape, len(port.shape)
    reads_tokens = any(not each.is_float for each in ports.inputs)
    scores = (rank == 2 and port.rest != (1,)) or (rank == 3 and reads_tokens)
    if loss == "cross_entropy" or (loss == "auto" and scores):
        axis = rank - 1 if rank == 3 else min(1, rank - 1)
        labels = (*shape[1:axis], *shape[axis + 1 :])
        classes: tuple[Any, ...] = (0, 1) if rank == 2 else ()
        return TargetFacts(TARGET, "int", labels, classes)
    return None
