"""TensorBoard: the numbers, histograms and mistakes of a run as TensorBoard events.

    tensorboard --logdir runs

The events are written by the package `tensorboard` itself; neither torch nor TensorFlow is needed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onward.errors import PackageMissing
from onward.graph.paths import writing
from onward.runner.callbacks.logged_steps import LoggedSteps
from onward.runner.callbacks.tensorboard_summaries import (
    histogram,
    picture_of,
    plain_settings,
    settings_table,
)
from onward.runner.events import Evaluation, StepRecord
from onward.runner.figures.pixels import encode_png
from onward.runner.run import Run

_MOST_HISTOGRAMS = 100  # parameters: the first ones, in the order of the model
_MOST_PICTURES = 8


TAGS = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "gradient_norm": "train/gradient_norm",
    "samples_per_second": "speed/samples_per_second",
    "data_wait": "speed/data_wait",
    "memory": "speed/memory",
}


class TensorBoard(LoggedSteps):
    """Writes events to the run's folder `tensorboard`.

    A resumed run writes a second file, which makes TensorBoard discard the events of the first one
    after the checkpoint: it shows one curve.
    """

    def __init__(self) -> None:
        self._events: EventFile | None = None

    def on_start(self, run: Run) -> None:
        settings = run.config.model_dump()
        super().on_start(run)
        self._events = EventFile(run.folder.path / "tensorboard")
        if run.step:
            self._events.forget_after(run.step)
            return
        self._events.text("config", settings_table(settings))
        self._events.hyperparameters(plain_settings(settings), run.folder.name)
        self._events.flush()

    def log_step(self, run: Run, step: StepRecord, numbers: Mapping[str, float]) -> None:
        assert self._events is not None
        self._events.scalars({TAGS[name]: value for name, value in numbers.items()}, step.number)

    def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        assert self._events is not None
        super().on_evaluate(run, evaluation)
        events, number = self._events, evaluation.step
        events.scalars({f"evaluation/{k}": v for k, v in evaluation.numbers.items()}, number)
        for name in list(run.session.parameters)[:_MOST_HISTOGRAMS]:
            events.histogram(f"parameters/{name}", run.session.parameters[name], number)
        for place, mistake in enumerate(evaluation.mistakes[:_MOST_PICTURES]):
            pixels = picture_of(mistake.feeds)
            if pixels is not None:
                events.picture(f"mistakes/{place}", pixels, number)
                found = f"row {mistake.position}: label {mistake.label}, predicted {mistake.answer}"
                events.text(f"mistakes/{place}/label", found, number)
        events.flush()

    def on_checkpoint(self, run: Run, path: Path) -> None:
        if self._events is not None:
            self._events.flush()

    def on_end(self, run: Run) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None


class EventFile:
    """A file of TensorBoard events in a folder."""

    def __init__(self, folder: Path) -> None:
        self._proto, self._writer = _open_writer(folder)
        self._folder = folder

    def scalars(self, numbers: Mapping[str, float], step: int) -> None:
        """Add numbers; NaN and infinities are left out: TensorBoard cannot draw them."""
        known = {tag: float(number) for tag, number in numbers.items() if math.isfinite(number)}
        self._add([{"tag": tag, "simple_value": number} for tag, number in known.items()], step)

    def histogram(self, tag: str, values: Any, step: int) -> None:
        found = histogram(values)
        if found is not None:
            self._add([{"tag": tag, "histo": self._proto.HistogramProto(**found)}], step)

    def picture(self, tag: str, pixels: Any, step: int) -> None:
        height, width, channels = pixels.shape
        image = self._proto.Summary.Image(
            height=height, width=width, colorspace=channels, encoded_image_string=encode_png(pixels)
        )
        self._add([{"tag": tag, "image": image}], step)

    def text(self, tag: str, text: str, step: int = 0) -> None:
        """Add a text in Markdown."""
        from tensorboard.compat.proto import tensor_pb2, tensor_shape_pb2, types_pb2

        one = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
        tensor = tensor_pb2.TensorProto(
            dtype=types_pb2.DT_STRING, tensor_shape=one, string_val=[text.encode()]
        )
        plugin = self._proto.SummaryMetadata.PluginData(plugin_name="text")
        metadata = self._proto.SummaryMetadata(plugin_data=plugin)
        self._add([{"tag": f"{tag}/text_summary", "tensor": tensor, "metadata": metadata}], step)

    def hyperparameters(self, settings: Mapping[str, bool | float | str], name: str) -> None:
        """Add the settings for TensorBoard's table of runs."""
        from tensorboard.plugins.hparams import summary_v2

        self._write(summary=summary_v2.hparams_pb(dict(settings), trial_id=name), step=0)

    def forget_after(self, step: int) -> None:
        """Let readers drop everything of earlier files that is after this step."""
        from tensorboard.compat.proto import event_pb2

        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(session_log=start, step=step + 1)

    def flush(self) -> None:
        with writing(self._folder):
            self._writer.flush()

    def close(self) -> None:
        with writing(self._folder):
            self._writer.close()

    def _add(self, values: list[dict[str, Any]], step: int) -> None:
        summary = self._proto.Summary(value=[self._proto.Summary.Value(**each) for each in values])
        self._write(summary=summary, step=step)

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto import event_pb2

        with writing(self._folder):
            self._writer.add_event(event_pb2.Event(wall_time=time.time(), **fields))


def _open_writer(folder: Path) -> tuple[Any, Any]:
    """The messages of summaries, and a writer of a new file in the folder."""
    try:
        from tensorboard.compat.proto import summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise PackageMissing(
            "TensorBoard events are written with the package tensorboard, which is not installed\n"
            "install it with: pip install 'onward[train]'"
        ) from None
    with writing(folder):
        return summary_pb2, EventFileWriter(str(folder))
