"""An example request made from a model's inputs: what the banner, the live page and docs show."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from typing import Any

from onward.serving.requests import TensorSpec

_MOST_ELEMENTS = 64  # of all inputs, that are written out
_VALUES: dict[str, Any] = {"BOOL": False, "BYTES": "text"}  # FP and INT: 0
_PICTURE = (  # a PNG file of one pixel, for inputs that take files
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNgAAAAAgAB5Sfe/AAAAABJRU5ErkJggg=="
)
SEQUENCE: dict[str, Any] = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}


def example_shape(spec: TensorSpec) -> list[int]:
    """A shape that the input takes: 1 for any size."""
    return [1 if size < 0 else size for size in spec.shape]


def example_value(spec: TensorSpec) -> Any:
    if spec.samples:
        return spec.samples[0]
    return 0.0 if spec.datatype.startswith(("FP", "BF")) else _VALUES.get(spec.datatype, 0)


def example_body(inputs: Sequence[TensorSpec], keeps_sequences: bool = False) -> dict[str, Any]:
    """The JSON body of an infer request; optional inputs are left out."""
    body: dict[str, Any] = {
        "inputs": [
            {
                "name": spec.name,
                "shape": (shape := example_shape(spec)),
                "datatype": spec.datatype,
                "data": [_element(spec)] * math.prod(shape),
            }
            for spec in inputs
            if not spec.is_optional
        ]
    }
    return {**body, "parameters": SEQUENCE} if keeps_sequences else body


def example_size(inputs: Sequence[TensorSpec]) -> int:
    """How many elements the example has."""
    return sum(math.prod(example_shape(spec)) for spec in inputs if not spec.is_optional)


def example_command(
    url: str, inputs: Sequence[TensorSpec], options: str = "", keeps_sequences: bool = False
) -> str:
    """A curl command that works in a shell as it is; a large body is made by python3.

    `options` are curl's, as the shell reads them.
    """
    more = f" {options}" if options else ""
    if example_size(inputs) <= _MOST_ELEMENTS:
        example = example_body(inputs, keeps_sequences)
        body = json.dumps(example, separators=(",", ":"), ensure_ascii=False)
        return f"curl {shlex.quote(url)}{more} -d {shlex.quote(body)}"
    program = f"import json; print(json.dumps({_body_expression(inputs, keeps_sequences)}))"
    return f"python3 -c {shlex.quote(program)} | curl {shlex.quote(url)}{more} --data-binary @-"


def example_arrays(inputs: Sequence[TensorSpec]) -> list[tuple[str, str, str]]:
    """(name, datatype, numpy expression) of each input, for a program in Python."""
    return [
        (spec.name, spec.datatype, _array_expression(spec))
        for spec in inputs
        if not spec.is_optional
    ]


def _element(spec: TensorSpec) -> Any:
    return {"b64": _PICTURE} if spec.is_binary else example_value(spec)


def _body_expression(inputs: Sequence[TensorSpec], keeps_sequences: bool) -> str:
    """The body as a Python expression in which data is a repeated element."""
    parts = []
    for tensor in example_body(inputs)["inputs"]:
        count = len(tensor["data"])
        data = f"{tensor['data'][:1]!r} * {count}" if count > 1 else repr(tensor["data"])
        parts.append(
            f"{{'name': {tensor['name']!r}, 'shape': {tensor['shape']}, "
            f"'datatype': {tensor['datatype']!r}, 'data': {data}}}"
        )
    more = f", 'parameters': {SEQUENCE}" if keeps_sequences else ""
    return f"{{'inputs': [{', '.join(parts)}]{more}}}"


def _array_expression(spec: TensorSpec) -> str:
    shape = ", ".join(map(str, example_shape(spec)))
    shape = f"({shape},)" if len(spec.shape) == 1 else f"({shape})"
    if spec.is_binary:
        return f'np.full({shape}, base64.b64decode("{_PICTURE}"), object)'
    if spec.datatype == "BYTES":
        text = str(example_value(spec)).encode()
        return f"np.full({shape}, {text!r}, object)"
    names = {"BOOL": "np.bool_", "BF16": "ml_dtypes.bfloat16"}
    default = spec.datatype.lower().replace("fp", "float")
    dtype = names.get(spec.datatype, f"np.{default}")
    if spec.samples:
        return f"np.full({shape}, {example_value(spec)!r}, {dtype})"
    return f"np.zeros({shape}, {dtype})"
