"""Open the graphs of artifacts as sessions of stock onnxruntime."""

from __future__ import annotations

import os

from onward.errors import InvalidModel
from onward.providers.options import SessionOptions
from onward.providers.ort.bound_session import CPU, BoundSession
from onward.providers.ort.session import ProviderList
from onward.providers.ort.training.bound_graph import BoundGraph, OrtGraph

_UNKNOWN = ("com.microsoft", "is not a registered function/op")

TRAIN = b"train"  # a key for the train graph, whose bytes are not kept


def open_graph(
    model: bytes | str | os.PathLike[str], options: SessionOptions, providers: ProviderList = CPU
) -> BoundSession:
    """Open a graph; one with operators that only the peer's wheel has is refused."""
    try:
        return BoundSession(model, options, providers)
    except InvalidModel as error:
        if all(words in str(error) for words in _UNKNOWN):
            raise InvalidModel(
                f"{str(error).rstrip()}\n"
                "onnxruntime.training made it, and only its wheel runs it: make the artifacts "
                "again with onward.training.artifacts.generate_artifacts; checkpoints can stay"
            ) from error
        raise


class ModuleGraphOpener:
    """Opens the graphs of a module once, however often memory is laid out again.

    All but the train graph are opened on the CPU, where the memory is.
    """

    def __init__(self, train: BoundGraph, options: SessionOptions) -> None:
        self._options = options
        # by the identity of their bytes: equal graphs of two groups have separate memory
        self._graphs: dict[int, tuple[bytes, BoundGraph]] = {id(TRAIN): (TRAIN, train)}

    def open(self, graph: bytes) -> BoundGraph:
        if id(graph) not in self._graphs:
            opened = OrtGraph(open_graph(graph, self._options))
            self._graphs[id(graph)] = graph, opened
        return self._graphs[id(graph)][1]

    def open_update(self, graph: bytes) -> BoundGraph | None:
        """An update over adjacent rows, whose memory is laid out where they can be used."""
        return self.open(graph)

    def open_fused_step(self) -> None:
        """A device's steps are two calls."""
