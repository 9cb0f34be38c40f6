"""ModelReader: a session's model, read and scanned once, however many plans are opened from it."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from onward.graph.packed.recognize import is_packed
from onward.graph.paths import check_readable, read_model
from onward.graph.scan.model_scan import ModelScan, scan_model
from onward.lazy import LazyModule
from onward.providers.options import SessionOptions, has_own_operators
from onward.providers.ort.ort_format import is_ort_format

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph import files, weights
    from onward.graph.files import Source
    from onward.providers import model_sources
else:  # loaded only when onnxruntime does not take the model as it is
    files = LazyModule("onward.graph.files")
    model_sources = LazyModule("onward.providers.model_sources")
    weights = LazyModule("onward.graph.weights")


class ModelReader:
    """The model of a source as bytes, as their scan, and as a graph.

    The limits of the options hold before a graph is built from the bytes.
    """

    def __init__(
        self, source: Source, options: SessionOptions, weights_file: str | os.PathLike[str] | None
    ) -> None:
        self.source, self.options, self.weights_file = source, options, weights_file
        self._model: ir.Model | None = None
        if isinstance(source, (str, os.PathLike)):
            check_readable(Path(source))

    @property
    def path(self) -> str | None:
        """The model's file, if it is one."""
        return os.fspath(self.source) if isinstance(self.source, (str, os.PathLike)) else None

    @property
    def is_ort_format(self) -> bool:
        return is_ort_format(self.source)

    @cached_property
    def data(self) -> bytes | None:
        """The bytes of a binary model; None for text, packed models, torch programs and objects."""
        if is_packed(self.source):
            return None
        if isinstance(self.source, bytes):
            return self.source
        if self.path is not None and Path(self.path).suffix in (".onnx", ".ort", ""):
            return read_model(Path(self.path), self.options.limits.file_bytes)
        return None

    @cached_property
    def scan(self) -> ModelScan | None:
        """What the bytes hold; a model over its limits is refused."""
        if self.data is None:
            return None
        allowed = has_own_operators(self.options)
        return scan_model(self.data, self.options.limits, any_domain=allowed, name=self._name)

    @property
    def _name(self) -> str:
        return "these bytes" if self.path is None else self.path

    def view_model(self) -> ir.Model:
        """The model as a graph that must not be changed."""
        if self._model is None:
            self._model = self._build()
        return self._model

    def take_model(self) -> ir.Model:
        """The model as a graph that is the caller's to change."""
        model, self._model = self.view_model(), None
        return model

    def _build(self) -> ir.Model:
        if self.data is None or self.scan is None:
            limits, allowed = self.options.limits, has_own_operators(self.options)
            return model_sources.open_model(
                self.source, self.weights_file, limits, any_domain=allowed
            )
        folder = None if self.path is None else Path(self.path).parent
        model: ir.Model = files.build_scanned(self.data, self._name, folder)
        if self.weights_file is not None:
            weights.swap_weights(model, self.weights_file)
        return model
