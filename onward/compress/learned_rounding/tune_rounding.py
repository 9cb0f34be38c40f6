"""tune_rounding: learn the integers and the scales of a quantized model instead of rounding once.

better = tune_rounding("float.onnx", quantized, calibration, Tune(seconds=300))

Each layer is fitted to its own float output first; then the whole quantized model learns the float
model's outputs, or labels. The better of before and after is returned.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from onward.compress.calibration import Calibration, Feeds, Labelled
from onward.compress.distillation.joined_batches import ROWS, count_rows
from onward.compress.distillation.match_teacher import batch_norm_names, match_teacher
from onward.compress.distillation.stored_batches import StoredBatches
from onward.compress.distillation.student_training import Limits, TrainedStudent, train_student
from onward.compress.distillation.teacher_outputs import model_digest
from onward.compress.distillation.trimmed_batches import training_batches, trimmed_batches
from onward.compress.dynamic_batch import dynamic_batch_copy, fixed_batch
from onward.compress.learned_rounding.fit_layers import fit_layers
from onward.compress.learned_rounding.loss_on_data import LossOnData, target_name
from onward.compress.learned_rounding.quantized_weights import find_weights
from onward.compress.learned_rounding.tune_settings import Tune
from onward.compress.learned_rounding.twin import Twin, make_twin
from onward.compress.progress_steps import Progress, no_progress
from onward.compress.quality import Judge
from onward.errors import NotFinite, OptionError
from onward.graph.files import load, save
from onward.message_text import first_line
from onward.optimizers.adam import AdamW
from onward.optimizers.groups import Group
from onward.passes.training_mode import eval_mode
from onward.programs.training_options import TrainingOptions
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

if TYPE_CHECKING:
    from onward.graph.files import Source

_STEPS = 300  # if the user gives neither steps nor seconds
_HELD_OUT = 8  # every eighth batch is left out to judge with
_MOST_HELD_OUT = 256  # rows, about
_LEAST_TO_SPLIT = 4  # batches; of fewer, all are learned from and judged with
_LAYERS_SHARE = 0.25  # of the seconds, at most, for fitting layers
_KEY = "onward.fitted"  # what a kept model was made from

Score = Callable[[ir.Model], float]  # higher is better


def tune_rounding(
    original: Source,
    quantized: ir.Model,
    calibration: Calibration,
    tune: Tune,
    *,
    progress: Progress = no_progress,
    clock: Callable[[], float] = time.monotonic,
) -> ir.Model:
    """The quantized model with integers and scales that were learned; a new model.

    Only the integers and the scales of weights, and the scales of data, change. If training does
    not help on batches that it has not seen, the result is a copy of `quantized`.

    Args:
        original: the float model that it was made from
        quantized: a model with DequantizeLinear behind integer initializers (QDQ), which does not
            change
        calibration: batches of the model's inputs
        tune: the settings
        progress: called with what begins now, the share that is done and the total
        clock: seconds, for tests
    """
    return learn_rounding(
        original, quantized, calibration, tune, progress=progress, clock=clock
    ).model


@dataclasses.dataclass(frozen=True)
class Learned:
    """What learning the rounding gave.

    Attributes:
        model: the better of before and after
        helped: whether it is better than before
        note: a sentence about it
    """

    model: ir.Model
    helped: bool
    note: str


def learn_rounding(
    original: Source,
    quantized: ir.Model,
    calibration: Calibration,
    tune: Tune,
    *,
    progress: Progress = no_progress,
    clock: Callable[[], float] = time.monotonic,
) -> Learned:
    """As `tune_rounding`, with what came of it."""
    start = clock()
    _check_has_weights(quantized)
    teacher = load(original, any_domain=True)
    learned, judged = _split(calibration, tune)
    score = _score(teacher, judged, tune)
    before = score(quantized)
    best, reached, note = quantized, before, ""
    if tune.layers:
        fitted = _fit(quantized, teacher, learned, tune, progress)
        value = score(fitted)
        if value > reached:
            best, reached = fitted, value
    left = None if tune.seconds is None else max(tune.seconds - (clock() - start), 1.0)
    twin, dynamic_teacher, batches = _for_training(best, teacher, learned, tune)
    try:
        trained = _train(twin, dynamic_teacher, batches, tune, left, progress, clock)
    except NotFinite as error:
        note = f"tuning ended early: {first_line(error)}; a lower learning rate may help"
    else:
        after = twin.to_quantized(trained.tensors)
        value = score(after)
        if value > reached:
            best, reached = after, value
        steps = f"{trained.steps} steps of tuning"
        if trained.skipped:
            steps += f" ({trained.skipped} more were not finite)"
    _forget_fitted(tune)
    measure = "error" if tune.loss is None else "loss"
    rows = "rows that were not learned from"
    if judged is learned:
        rows = "the rows that were learned from, as there are too few to leave some out"
    gain = f"{measure} {-before:.4g} to {-reached:.4g} on {rows}"
    if not note:
        note = f"{steps}: {gain}" if reached > before else f"{steps} did not help"
    elif reached > before:
        note = f"{note}; {gain} by fitting layers"
    return Learned(best.clone(), reached > before, note)


def _fit(
    quantized: ir.Model, teacher: ir.Model, data: Calibration, tune: Tune, progress: Progress
) -> ir.Model:
    """The model with fitted layers; with a folder it is kept, as its end depends on the clock."""
    path = _fitted_path(tune)
    key = hashlib.sha256(f"{model_digest(quantized)} {model_digest(teacher)}".encode()).hexdigest()
    if path is not None and path.exists():
        kept = load(path)
        if kept.metadata_props.pop(_KEY, None) == key:
            return kept
    most = None if tune.seconds is None else tune.seconds * _LAYERS_SHARE
    measured = trimmed_batches(teacher, data) or data
    fitted = fit_layers(quantized, teacher, measured, seconds=most, progress=progress)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        fitted.metadata_props[_KEY] = key
        save(fitted, path)
        del fitted.metadata_props[_KEY]
    return fitted


def _fitted_path(tune: Tune) -> Path | None:
    return None if tune.folder is None else Path(tune.folder) / "fitted.onnx"


def _forget_fitted(tune: Tune) -> None:
    path = _fitted_path(tune)
    if path is not None:
        path.unlink(missing_ok=True)


def _for_training(
    quantized: ir.Model, teacher: ir.Model, data: Calibration, tune: Tune
) -> tuple[Twin, ir.Model, Calibration]:
    """The twin, the teacher and the data in batches of enough rows."""
    rows = tune.batch or ROWS
    twin = make_twin(quantized, teacher)
    if fixed_batch(quantized) is not None:
        first = data.first()
        dynamic = [dynamic_batch_copy(model, first) for model in (quantized, teacher)]
        if dynamic[0] is None or dynamic[1] is None:
            return twin, teacher, data
        twin = dataclasses.replace(make_twin(dynamic[0], teacher), quantized=quantized)
        teacher = dynamic[1]
    inputs = InferenceSession(teacher, SessionOptions(log_severity_level=4)).get_inputs()
    joined = Calibration(data.labelled_batches, inputs, target=data.target)
    return twin, teacher, training_batches(teacher, joined, rows)


def _train(
    twin: Twin,
    teacher: ir.Model,
    data: Calibration,
    tune: Tune,
    seconds: float | None,
    progress: Progress,
    clock: Callable[[], float],
) -> TrainedStudent:
    """Train a twin to give the teacher's outputs, or with the user's loss."""
    steps = _STEPS if tune.steps is None and seconds is None else tune.steps
    rates = {pattern: tune.scale_rate / levels for pattern, levels in twin.levels.items()}
    if tune.loss is None:
        done: list[TrainedStudent] = []
        match_teacher(
            twin.model,
            teacher,
            data,
            steps=steps,
            seconds=seconds,
            learning_rate=tune.learning_rate,
            groups=rates,
            trained=twin.parameters,
            clip_norm=None,
            folder=tune.folder,
            seed=tune.seed,
            progress=progress,
            on_trained=done.append,
            clock=clock,
        )
        return done[0]
    batches = StoredBatches(data, tune.seed)
    name = target_name(twin.model, tune.loss)

    def feeds_at(step: int) -> Feeds:
        _, (feeds, targets) = batches.at(step)
        return {**feeds, name: targets}

    settings = dataclasses.replace(tune, data=None, folder=None, steps=None, seconds=None)
    return train_student(
        eval_mode(twin.model.clone()),
        tune.loss,
        AdamW(lr=tune.learning_rate, weight_decay=0.0),
        TrainingOptions(
            trainable=twin.parameters,
            groups=[Group(parameters=name, lr=rate) for name, rate in rates.items()],
            frozen_batch_norms=batch_norm_names(twin.model),
            outputs=[],
            seed=tune.seed,
        ),
        feeds_at,
        Limits(steps=steps, seconds=seconds),
        folder=tune.folder,
        key=hashlib.sha256(f"{model_digest(twin.model)} {settings}".encode()).hexdigest(),
        progress=progress,
        clock=clock,
    )


def _check_has_weights(quantized: ir.Model) -> None:
    if not find_weights(quantized):
        raise OptionError(
            "the model has no quantized weights to tune: integer initializers behind "
            "DequantizeLinear that a linear layer reads\nquantize it first"
        )


def _score(teacher: ir.Model, judged: Calibration, tune: Tune) -> Score:
    """How good a model is: minus its loss, or its similarity to the teacher."""
    judged = trimmed_batches(teacher, judged) or judged
    if tune.loss is not None:
        return LossOnData(tune.loss, judged).score
    judge = Judge(teacher, judged)
    return lambda model: -judge.rate(model).error


def _split(calibration: Calibration, tune: Tune) -> tuple[Calibration, Calibration]:
    """The batches to learn from, and those to judge with.

    Rows of `tune.data` judge, if there are enough: a quantizer may have fitted the calibration's.
    """
    inputs, source = calibration.inputs, calibration
    if tune.data is not None:
        source = Calibration(tune.data, inputs, target=tune.target, batch=tune.batch)
    sizes = [count_rows(feeds) for feeds in source.batches()]
    if len(sizes) < _LEAST_TO_SPLIT:
        has_targets = next(calibration.labelled_batches())[1] is not None
        return source, calibration if tune.loss is None or has_targets else source
    every = max(_HELD_OUT, sum(sizes) // _MOST_HELD_OUT)

    def choose(held_out: bool) -> Iterator[Labelled]:
        for place, batch in enumerate(source.labelled_batches()):
            if (place % every == every // 2) == held_out:
                yield batch

    return (
        Calibration(lambda: choose(False), inputs, target=source.target),
        Calibration(lambda: choose(True), inputs, target=source.target),
    )
