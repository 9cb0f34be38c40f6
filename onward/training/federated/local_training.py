"""LocalTraining: a client's part of federated learning, over training artifacts."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from onward import settings
from onward.errors import ColumnMissing, DataError, FeedError, NotFinite, OptionError
from onward.graph.paths import to_path
from onward.message_text import suggest_names
from onward.runner.data.dataset import Dataset
from onward.runner.data.open_data import open_data
from onward.runner.data.order import positions
from onward.runner.metrics.make_metric import make_metric
from onward.training.api.checkpoint_state import CheckpointState
from onward.training.api.module import Module
from onward.training.api.optimizer import Optimizer

Array = np.ndarray[Any, Any]

_EVALUATION_ROWS = 256  # of a batch


@settings.explain_keywords
@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """How a client trains in a round; the server chooses it and sends it along.

    >>> LocalSettings(epochs=2, proximal=0.1).batch_size
    32
    """

    epochs: int = 1
    batch_size: int = 32
    learning_rate: float | None = None  # None: that of the artifacts
    proximal: float = 0.0  # FedProx's mu: how strongly clients stay near the round's parameters
    seed: int = 0  # of the order of rows, and of dropout

    def __post_init__(self) -> None:
        settings.check_fields(
            self,
            epochs=settings.integer(1),
            batch_size=settings.integer(1),
            learning_rate=settings.optional(settings.number()),
            proximal=settings.number(),
            seed=settings.integer(0),
        )

    def given(self) -> dict[str, int | float]:
        """The settings that are not None, as `LocalSettings(**given)` takes them."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class LocalResult(NamedTuple):
    """Parameters, the number of rows they were trained or evaluated on, and the numbers."""

    parameters: list[Array]
    rows: int
    metrics: dict[str, float]


class LocalTraining:
    """Artifacts that are opened to train and evaluate parameters that come from a server.

        client = LocalTraining("artifacts")
        parameters, rows, metrics = client.fit(parameters, {"pixels": x, "labels": y})

    Data is whatever `open_data` reads; its columns have the names of the artifacts' inputs.
    `metrics` are names such as "accuracy"; they compare an output of the evaluation model
    (`output`, else the first one after the loss) with its last input.
    """

    def __init__(
        self,
        artifacts: str | os.PathLike[str],
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        metrics: Sequence[str] = (),
        output: str | None = None,
    ) -> None:
        folder = to_path(artifacts)
        self.state = CheckpointState.load_checkpoint(checkpoint or folder / "checkpoint")
        self.state._state.optimizer = None  # each round starts a new one
        self._module = Module(
            folder / "training_model.onnx", self.state, folder / "eval_model.onnx"
        )
        self._optimizer = Optimizer(folder / "optimizer_model.onnx", self._module)
        self._rate = self._optimizer.get_learning_rate()
        trained = self.state._state.trainable
        # running statistics are averaged like parameters
        self.names = (*trained, *(n for n in self._module._roles.state if n not in trained))
        self._metrics = tuple(metrics)
        self._output = self._find_output(output) if metrics else None
        for name in metrics:
            make_metric(name)  # refuse an unknown one now, not after a round

    @property
    def has_outputs(self) -> bool:
        """Whether the evaluation model has outputs in addition to the loss, to export."""
        return len(self._module.eval().output_names()) > 1

    @property
    def parameters(self) -> list[Array]:
        """Copies of what is exchanged, in the order of `names`."""
        return [self.state._state.read(name).copy() for name in self.names]

    def set_parameters(self, parameters: Sequence[Array]) -> None:
        """Continue from these parameters, in the order of `names`."""
        if len(parameters) != len(self.names):
            raise FeedError(
                f"{len(parameters)} parameters were given, the model has {len(self.names)}\n"
                "give those of the same artifacts"
            )
        for name, array in zip(self.names, parameters):
            self.state._state.write(name, array)

    def fit(
        self,
        parameters: Sequence[Array],
        data: Any,
        local: LocalSettings | None = None,
        *,
        round_number: int = 0,
    ) -> LocalResult:
        """Train from these parameters on this data, with a new optimizer state.

        With `proximal` (mu), every update is followed by w = (w + lr mu w0) / (1 + lr mu), the
        proximal step of mu/2 |w - w0|^2, where w0 are the round's parameters (FedProx).
        """
        local = local or LocalSettings()
        columns, rows = self._open(data, training=True)
        self.set_parameters(parameters)
        self._optimizer.restart()
        self._optimizer.set_learning_rate(
            self._rate if local.learning_rate is None else local.learning_rate
        )
        self._module._seed = (local.seed << 20) + round_number
        self._module.train().lazy_reset_grad()
        skipped, losses, steps = self._optimizer.skipped_steps, [math.nan], 0
        for epoch in range(local.epochs):
            order = positions(local.seed, round_number * local.epochs + epoch, rows)
            losses = [
                self._step(feeds, parameters, local)
                for feeds in self._batches(columns, order, local.batch_size)
            ]
            steps += len(losses)
        if steps and self._optimizer.skipped_steps - skipped == steps:  # it learnt nothing
            raise NotFinite(
                f"gradients were not finite in any of {steps} steps: no parameter was changed\n"
                "correct the data, or take a smaller learning rate"
            )
        metrics = {"loss": math.fsum(losses) / len(losses) if losses else math.nan}
        if self._optimizer.skipped_steps > skipped:
            metrics["skipped_steps"] = float(self._optimizer.skipped_steps - skipped)
        return LocalResult(self.parameters, rows, metrics)

    def evaluate(self, parameters: Sequence[Array], data: Any) -> LocalResult:
        """The loss and the metrics of these parameters on this data."""
        columns, rows = self._open(data, training=False)
        if not rows:
            raise DataError("there are no rows to evaluate on\ngive at least one")
        self.set_parameters(parameters)
        computed = [make_metric(name) for name in self._metrics]
        losses = []
        self._module.eval()
        for feeds in self._batches(columns, np.arange(rows), _EVALUATION_ROWS):
            found = self._module(*feeds)
            results = found if isinstance(found, tuple) else (found,)
            losses.append(float(results[0]) * len(feeds[-1]))
            for metric in computed:
                metric.update(results[self._output or 0], feeds[-1])
        numbers = {name: metric.result() for name, metric in zip(self._metrics, computed)}
        return LocalResult(list(parameters), rows, {"loss": math.fsum(losses) / rows, **numbers})

    def export(self, path: str | os.PathLike[str], outputs: Sequence[str] | None = None) -> None:
        """Write the current parameters as a model for inference; all outputs but the loss, if None.

        This loads onnx. The file is replaced as a whole.
        """
        names = self._module.eval().output_names()[1:] if outputs is None else list(outputs)
        if not names:
            raise OptionError(
                "the evaluation model has no output but the loss\n"
                "make the artifacts with additional_output_names=[...]"
            )
        target = to_path(path)
        new = target.with_name(f".{target.name}.new")
        self._module.export_model_for_inferencing(new, names)
        new.replace(target)

    def save(
        self, path: str | os.PathLike[str], properties: Mapping[str, int | float | str]
    ) -> None:
        """Write the current parameters as a checkpoint, with properties."""
        for name, value in properties.items():
            self.state.properties[name] = value
        CheckpointState.save_checkpoint(self.state, path)

    # -- internals -----------------------------------------------------------------------------

    def _step(self, feeds: list[Array], start: Sequence[Array], local: LocalSettings) -> float:
        results = self._module(*feeds)
        self._optimizer.step()
        self._module.lazy_reset_grad()
        strength = local.proximal * self._optimizer.get_learning_rate()
        if strength:
            for name, first in zip(self.state._state.trainable, start):
                tensor = self.state._state.read(name)
                tensor[...] = (tensor + strength * first) / (1 + strength)
        return float(results[0] if isinstance(results, tuple) else results)

    def _open(self, data: Any, training: bool) -> tuple[Dataset, int]:
        opened = open_data(data)
        for name in self._module.train(training).input_names():
            if name not in opened.columns:
                hint = suggest_names(name, opened.columns, "its columns are")
                raise ColumnMissing(
                    f"the data has no column {name!r}, an input of the model\n{hint}"
                )
        return opened, len(opened)

    def _batches(self, data: Dataset, order: Array, size: int) -> Iterator[list[Array]]:
        names = self._module.input_names()
        for start in range(0, len(order), size):
            found = data.read(order[start : start + size], names)
            yield [found[name] for name in names]

    def _find_output(self, output: str | None) -> int:
        names = self._module.eval().output_names()
        if output is None and len(names) > 1:
            return 1
        if output not in names:
            raise OptionError(
                f"the evaluation model has no output {output!r} to measure\n"
                f"{suggest_names(str(output), names)}; generate_artifacts takes "
                "additional_output_names=[...]"
            )
        return names.index(output)
