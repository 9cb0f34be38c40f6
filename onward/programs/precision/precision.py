"""Precision: the settings of mixed precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from onward.errors import OptionError
from onward.message_text import suggest_names
from onward.settings import (
    check_fields,
    choice,
    explain_frozen,
    explain_keywords,
    list_of,
    optional,
    setting_error,
    true_or_false,
)

BF16, FP16, FP8 = "bf16", "fp16", "fp8"
LONG_NAMES = {BF16: "bfloat16", FP16: "float16"}
_SPELLINGS = {**{name: name for name in LONG_NAMES}, "bfloat16": BF16, "float16": FP16}


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class Precision:
    """The types in which the forward pass of training computes.

    Attributes:
        dtype: the 16-bit type of matrix products, convolutions and attention: "bf16" or "fp16"
        float32: operators, names of nodes or patterns of them that stay in float32
        promote: a pointwise operator that reads both types computes in float32, as in
            torch.autocast; False: in 16 bits, so that residual sums are 16 bits, too
        products: "fp8": products of linear layers in 8-bit floats, on GPUs that have them; None:
            in 16 bits
        emulated: also run on a processor, or with a provider, that has no such instructions

    >>> Precision(dtype="bf16", float32=["*lm_head*"]).dtype
    'bf16'
    """

    dtype: str = BF16
    float32: Sequence[str] = ()
    promote: bool = True
    products: str | None = None
    emulated: bool = False

    def __post_init__(self) -> None:
        check_fields(
            self,
            dtype=_dtype,
            float32=list_of(str, "a list of patterns", "['*lm_head*']"),
            promote=true_or_false,
            products=optional(choice(FP8)),
            emulated=true_or_false,
        )

    @property
    def kind(self) -> str:
        """The type's name in ONNX: "bfloat16" or "float16"."""
        return LONG_NAMES[self.dtype]


def to_precision(name: str, given: Any) -> Precision | None:
    """The settings of an argument: a Precision, a dictionary, "bf16", "fp16" or "fp32", or None.

    >>> to_precision("precision", "float16")
    Precision(dtype='fp16', float32=(), promote=True, products=None, emulated=False)
    """
    if given is None or isinstance(given, Precision):
        return given
    if isinstance(given, str):
        return None if given in ("fp32", "float32") else Precision(dtype=_dtype(name, given))
    if not isinstance(given, Mapping):
        hint = "such as 'bf16', or Precision(dtype='bf16', float32=['*lm_head*'])"
        raise setting_error(name, "the name of a type or a Precision", given, hint)
    known = [each.name for each in fields(Precision)]
    for key in given:
        if key not in known:
            raise OptionError(f"{name} has no setting {key!r}\n{suggest_names(str(key), known)}")
    return Precision(**given)


def _dtype(name: str, value: Any) -> str:
    """The short name of a 16-bit type."""
    if isinstance(value, str) and value in _SPELLINGS:
        return _SPELLINGS[value]
    known = " or ".join(repr(each) for each in LONG_NAMES)
    raise setting_error(name, known, value, "leave it out to train in float32")
