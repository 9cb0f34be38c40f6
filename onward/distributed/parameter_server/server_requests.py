"""The requests of workers to a parameter server: plain headers with tensors by name.

    {"do": "join", "worker": id}                                       -> names, settings
    {"do": "pull", "worker": id, "history": text, "version": number}   -> version, draw + tensors
    {"do": "push", "worker": id, "number": n, "version": v, "weight": rows} + tensors -> status
    {"do": "alive" | "leave", "worker": id}

Tensors of a push are gradients under `gradients/{name}`, statistics under their names. Every
request may be sent again when its answer was lost: it has the same effect once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeGuard

import numpy as np

from onward.programs.program import Array, gradient_name
from onward.workers import messages

Header = dict[str, Any]
Tensors = Mapping[str, Array]


class ServerConnection(Protocol):
    """The connection of a worker to one parameter server."""

    def ask(self, header: Header, tensors: Tensors) -> tuple[Header, dict[str, Array]]:
        """Send a request and return its answer; PeerLost where the server is gone for good."""
        ...

    def end(self, last: Header) -> None:
        """End the connection, after a last request if the server answers at once."""
        ...


def pack_tensors(tensors: Tensors, buffers: list[messages.Buffer]) -> Header:
    """Tensors as JSON; their data goes to `buffers`."""
    return {name: messages.pack(np.asarray(tensor), buffers) for name, tensor in tensors.items()}


def unpack_tensors(packed: Any, buffers: Iterator[Array]) -> dict[str, Array]:
    """The tensors that `pack_tensors` was given; ValueError if that was something else."""
    if not isinstance(packed, dict):
        raise ValueError("tensors must be a dictionary")
    tensors = {}
    for name, each in packed.items():
        if not isinstance(each, dict) or each.get("kind") != "tensor":
            raise ValueError(f"{name!r} is not a tensor")
        tensors[name] = messages.unpack(each, buffers)
    return tensors


def join_push(gradients: Tensors, statistics: Tensors) -> dict[str, Array]:
    """The tensors of a push."""
    return {gradient_name(name): g for name, g in gradients.items()} | dict(statistics)


def split_push(tensors: Tensors) -> tuple[dict[str, Array], dict[str, Array]]:
    """The gradients and the statistics of a push."""
    start = gradient_name("")
    gradients = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
    return gradients, {n: t for n, t in tensors.items() if not n.startswith(start)}


def is_text(value: Any) -> TypeGuard[str]:
    """Whether this is a name of reasonable length."""
    return isinstance(value, str) and 0 < len(value) <= 200


def is_count(value: Any) -> TypeGuard[int]:
    """Whether this is a whole number that is not negative."""
    return type(value) is int and value >= 0
