"""Opening: a graph of the artifacts as a session."""

from __future__ import annotations

import os

from onward.errors import InvalidModel
from onward.providers.options import SessionOptions
from onward.providers.ort.bound import CPU, BoundSession
from onward.providers.ort.session import ProviderList

_UNKNOWN = ("com.microsoft", "is not a registered function/op")


def open_graph(
    model: bytes | str | os.PathLike[str], options: SessionOptions, providers: ProviderList = CPU
) -> BoundSession:
    """Open a graph; one with operators that the peer's wheel alone has is refused as the peer's."""
    try:
        return BoundSession(model, options, providers)
    except InvalidModel as error:
        if all(words in str(error) for words in _UNKNOWN):
            raise InvalidModel(
                f"{str(error).rstrip()}\n"
                "onnxruntime.training made it, and its wheel alone runs it: make the artifacts "
                "anew with onward.training.artifacts.generate_artifacts; checkpoints can stay"
            ) from error
        raise
