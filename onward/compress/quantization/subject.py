"""Subject: the model that is quantized, with its data, its judges and its figures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from onward.compress.calibration import Calibration, Feeds
from onward.compress.quality import Judge, OwnMetric, Quality
from onward.compress.quantization.quantization_plan import Quantizer
from onward.compress.report import Measured
from onward.errors import ProviderError
from onward.graph.files import saved_bytes, weight_bytes
from onward.graph.random_feeds import random_feeds
from onward.graph.summary import file_bytes, summarize
from onward.measure.memory.memory_plan import measure_memory
from onward.providers.model_sources import open_model
from onward.runner.metrics.metric import Metric

if TYPE_CHECKING:
    from onward.graph.files import Source

_LARGE = 1 << 30  # bytes of weights; such a model is not opened in float to be compared with
_SMALL = 1 << 20  # bytes of a file; the memory of such a model is lost in the engine's own
_QUICK_BATCHES = 2


@dataclass(frozen=True)
class Subject:
    """A model to quantize; what is measured of it is measured once.

    Attributes:
        source: the model as the user gave it
        calibration: its data
        metric: the user's, or None
        provider: the full name of the provider that it is measured on
        sizes: sizes of dynamic dimensions that it is timed with; empty: those of the first batch
        seed: of random feeds
        with_memory: whether the memory of sessions is measured
        quantizers: those that were made, by `quantizer_key`
    """

    source: Source
    calibration: Calibration
    metric: str | Metric | OwnMetric | None
    provider: str
    sizes: Mapping[str, int]
    seed: int
    with_memory: bool
    quantizers: dict[str, Quantizer] = field(default_factory=dict)

    @cached_property
    def model(self) -> ir.Model:
        """The float model; it does not change."""
        return open_model(self.source)

    def copy(self) -> ir.Model:
        """The float model for a quantizer to change."""
        return open_model(self.source)

    @property
    def is_large(self) -> bool:
        """Whether the model is too large to be opened together with its quantized form."""
        return weight_bytes(self.model) > _LARGE

    @property
    def providers(self) -> list[str]:
        return [self.provider]

    @cached_property
    def judge(self) -> Judge:
        return Judge(self.source, self.calibration, metric=self.metric, providers=self.providers)

    @cached_property
    def quick_judge(self) -> Judge:
        """A judge on the first batches, to compare many plans."""
        inputs = self.calibration.inputs
        part = Calibration(self.calibration, inputs, limit=_QUICK_BATCHES)
        return Judge(self.source, part, providers=self.providers)

    @cached_property
    def feeds(self) -> Feeds:
        """What models are timed with: random feeds of the given sizes, or the first batch."""
        if self.sizes:
            return random_feeds(self.calibration.inputs, self.sizes, self.seed)
        return self.calibration.first()

    @cached_property
    def bytes(self) -> int:
        """The size of its file."""
        if isinstance(self.source, (str, os.PathLike)):
            return file_bytes(Path(self.source), summarize(self.model))
        return saved_bytes(self.model)

    @cached_property
    def memory(self) -> int | None:
        return self.measure_memory(self.source)

    def measure_memory(self, model: Source) -> int | None:
        """The memory of a session and its runs; None where it cannot be measured."""
        if not self.with_memory or self.bytes < _SMALL:
            return None
        try:
            return measure_memory(model, self.feeds, self.providers).peak
        except ProviderError:
            return None

    def figures(self, seconds: float | None, quality: Quality | None) -> Measured:
        """The figures of the float model."""
        memory = None if self.is_large else self.memory
        return Measured(file_bytes=self.bytes, seconds=seconds, memory=memory, quality=quality)
