"""Emulate types for which torch has few operators by types for which it has all.

torch stores uint16, uint32, uint64 and the float8s, but can hardly compute with them. A kernel
declares what it needs of its inputs' type, and its body then never receives one of these:

    @kernel("Add")
    @by_bits                  # the sign does not matter: the same bits, read as a signed integer
    def add(a: Tensor, b: Tensor) -> Tensor: ...

    @kernel("TopK")
    @by_order                 # only the order matters: signed, with the top bit flipped
    def top_k(...) -> tuple[Tensor, Tensor]: ...

    @kernel("Pow")
    @by_value                 # the number itself matters: the next wider signed integer
    def power(...) -> Tensor: ...

`by_bits` costs nothing (two views) and is right for operators that move elements (Gather, Pad,
Transpose: the float8s too) and for arithmetic modulo 2^n (Add, Mul, And, Equal, CumSum).
`by_order` is one xor each way and is exact for uint64. `by_value` copies; it is exact for
uint16 and uint32, and for uint64 below 2^63.

The first output is converted to the inputs' type. `@by_order(results=0)` converts none
(comparisons, ArgMax), `results=None` all (Split). The decorator goes under `@kernel`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, overload

import torch

from onward.providers.torch.dtypes import Tensor

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# What an unsigned integer's bits are read as: a signed integer of the same width.
SIGNED: dict[torch.dtype, torch.dtype] = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}
# What holds an unsigned integer's value: a signed integer of the next width.
WIDER: dict[torch.dtype, torch.dtype] = {
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
}
_FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
_BITS: dict[torch.dtype, torch.dtype] = SIGNED | dict.fromkeys(_FLOAT8, torch.int8)


class Decorator(Protocol):
    """A decorator, used bare or with `results`: the number of first outputs to convert."""

    @overload
    def __call__(self, function: Kernel, /) -> Kernel: ...
    @overload
    def __call__(self, /, *, results: int | None) -> Callable[[Kernel], Kernel]: ...


def read_as_signed(x: Tensor) -> Tensor:
    """The same bits, as a signed integer of the same width."""
    return x.view(_BITS[x.dtype])


def flip(x: Tensor) -> Tensor:
    """Unsigned to signed, smallest to smallest: u - 2^(n-1), which keeps the order."""
    signed = read_as_signed(x)
    return signed ^ torch.iinfo(signed.dtype).min


def _unflip(y: Tensor, dtype: torch.dtype) -> Tensor:
    return (y ^ torch.iinfo(y.dtype).min).view(dtype)


def widen(x: Tensor) -> Tensor:
    """The same value, as a wider signed integer."""
    return x.to(WIDER[x.dtype])


def _decorator(
    types: dict[torch.dtype, torch.dtype],
    convert: Callable[[Tensor], Tensor],
    back: Callable[[Tensor, torch.dtype], Tensor],
) -> Decorator:
    """A decorator that converts inputs of these types by `convert`, and results by `back`."""

    def decorate(function: Any = None, /, *, results: int | None = 1) -> Any:
        if function is None:
            return functools.partial(decorate, results=results)

        @functools.wraps(function)
        def run(*inputs: Any, **attributes: Any) -> Any:
            dtype = _first_of(types, inputs)
            if dtype is None:
                return function(*inputs, **attributes)
            ys = function(*[_each(convert_if_emulated, x) for x in inputs], **attributes)
            first, rest = _split(ys, results)
            first = _each(lambda y: back(y, dtype), first)
            return (*first, *rest) if isinstance(ys, tuple) else (*first, *rest)[0]

        run.widened = frozenset(types)  # type: ignore[attr-defined]
        return run

    def convert_if_emulated(x: Tensor) -> Tensor:
        return convert(x) if x.dtype in types else x

    return decorate


def without_emulation(
    kernel: Callable[..., Any], types: Iterable[torch.dtype | None]
) -> Callable[..., Any]:
    """The undecorated kernel, if its inputs' types are known and none needs emulation.

    This saves the check at every call.
    """
    widened = getattr(kernel, "widened", None)
    if widened is None or any(dtype is None or dtype in widened for dtype in types):
        return kernel
    return kernel.__wrapped__  # type: ignore[no-any-return,attr-defined]


def _first_of(types: dict[torch.dtype, torch.dtype], inputs: Any) -> torch.dtype | None:
    """The first of these types among a kernel's inputs; fast, because every call runs it."""
    for x in inputs:
        if isinstance(x, Tensor):
            if x.dtype in types:
                return x.dtype
        elif isinstance(x, list) and (dtype := _first_of(types, x[:1])) is not None:
            return dtype
    return None


def _split(ys: Any, results: int | None) -> tuple[list[Any], list[Any]]:
    outputs = list(ys) if isinstance(ys, tuple) else [ys]
    return outputs[:results], [] if results is None else outputs[results:]


def _each(change: Callable[[Tensor], Tensor], x: Any) -> Any:
    """Apply a change to a tensor or a sequence of them; numbers and None pass unchanged."""
    if isinstance(x, Tensor):
        return change(x)
    return [_each(change, item) for item in x] if isinstance(x, list) else x


by_bits: Decorator = _decorator(_BITS, read_as_signed, Tensor.view)
by_order: Decorator = _decorator(SIGNED, flip, _unflip)
by_value: Decorator = _decorator(WIDER, widen, Tensor.to)
