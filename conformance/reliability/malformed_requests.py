"""Requests that no server may accept: broken HTTP, broken JSON, false sizes, wrong tensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from conformance.reliability.serving_client import binary_request, post
from conformance.reliability.serving_models import NAME, make_input


def _edited(edit: Callable[[dict[str, Any]], None]) -> Callable[[int], bytes]:
    """A binary request whose JSON part was changed."""

    def request(number: int) -> bytes:
        x = make_input(number)
        entry = {"name": "x", "shape": list(x.shape), "datatype": "FP32",
                 "parameters": {"binary_data_size": x.nbytes}}  # fmt: skip
        edit(entry)
        return _with_json(json.dumps({"inputs": [entry]}).encode(), number)

    return request


def _announced(size: Any) -> Callable[[int], bytes]:
    """A binary request with another number of bytes than it has."""
    return _edited(lambda entry: entry["parameters"].update(binary_data_size=size))


def _with_json(head: bytes, number: int, length: str | None = None) -> bytes:
    more = f"Inference-Header-Content-Length: {length or len(head)}\r\n"
    return post(head + make_input(number).tobytes(), more)


def _json(text: str) -> Callable[[int], bytes]:
    return lambda number: post(text.encode("utf-8", "surrogateescape"))


def _head_length(length: str) -> Callable[[int], bytes]:
    return lambda number: _with_json(b'{"inputs": []}', number, length)


def _raw(data: bytes) -> Callable[[int], bytes]:
    return lambda number: data


def _replaced(old: bytes, new: bytes) -> Callable[[int], bytes]:
    return lambda number: binary_request(number).replace(old, new, 1)


def _tensor(**changes: Any) -> Callable[[int], bytes]:
    """A JSON request for one row of 64 numbers, with changes."""
    entry = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [0.5] * 64} | changes
    return _json(json.dumps({"inputs": [entry]}))


_PATH = f"/v2/models/{NAME}/infer".encode()

MALFORMED: dict[str, Callable[[int], bytes]] = {
    # HTTP
    "no HTTP at all": _raw(b"\x16\x03\x01\x02\x00hello\r\n\r\n"),
    "no version of HTTP": _replaced(b" HTTP/1.1", b" SMTP/1.1"),
    "a length that is no number": _replaced(b"\r\nContent-Length: ", b"\r\nContent-Length: abc"),
    "a negative length": _replaced(b"\r\nContent-Length: ", b"\r\nContent-Length: -"),
    "two lengths": _replaced(b"Host: localhost", b"Content-Length: 3"),
    "a header without a colon": _replaced(b"Host: localhost", b"Host localhost"),
    "the wrong method": _raw(b"GET " + _PATH + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "no such path": _replaced(b"/infer ", b"/infers "),
    "no such model": _replaced(NAME.encode(), b"nothing"),
    "no such version": _replaced(b"/infer ", b"/versions/99/infer "),
    # sizes
    "a JSON part longer than the body": _head_length("99999"),
    "a JSON part of negative length": _head_length("-3"),
    "a JSON part whose length is no number": _head_length("ten"),
    "a JSON part that is cut off": _head_length("7"),
    "fewer bytes than announced": _announced(1024),
    "more bytes than announced": _announced(4),
    "a negative number of bytes": _announced(-256),
    "a number of bytes that is text": _announced("x"),
    # tensors
    "an unknown input": _edited(lambda e: e.update(name="z")),
    "a name that is no text": _edited(lambda e: e.update(name=7)),
    "another datatype": _edited(lambda e: e.update(datatype="INT32")),
    "an unknown datatype": _edited(lambda e: e.update(datatype="FP31")),
    "no datatype": _edited(lambda e: e.pop("datatype")),
    "no shape": _edited(lambda e: e.pop("shape")),
    "a shape of another rank": _tensor(shape=[64]),
    "a shape of another size": _tensor(shape=[1, 63], data=[0.5] * 63),
    "a negative size": _tensor(shape=[-1, 64]),
    "a huge size": _tensor(shape=[1 << 40, 64]),
    "sizes whose product overflows": _tensor(shape=[1 << 33, 1 << 33]),
    "a size that is no integer": _tensor(shape=[1.5, 64]),
    "text for numbers": _tensor(data=["half"] * 64),
    "too few numbers": _tensor(data=[0.5] * 3),
    "numbers nested unevenly": _tensor(data=[[0.5] * 63, 0.5]),
    "no data": _tensor(data=None),
    # JSON
    "an empty body": _json(""),
    "no JSON": _json("x=1&y=2"),
    "JSON that is cut off": _json('{"inputs": [{"name": "x", "sha'),
    "a list": _json("[1, 2]"),
    "no inputs": _json("{}"),
    "inputs that are no list": _json('{"inputs": 3}'),
    "an input that is no object": _json('{"inputs": [3]}'),
    "JSON nested too deep": _json("[" * 50_000),
    "bytes that are not UTF-8": _json('{"inputs": "\udcff\udcfe"}'),
}  # fmt: skip
