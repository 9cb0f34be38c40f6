"""The settings of a quantization, read from what a user writes: "1%", "100MB", "5min"."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from onward.errors import OptionError, ProviderMissing
from onward.graph.int8_weights import ALL
from onward.lazy import LazyModule
from onward.providers.choose import available, full_name, install_hint
from onward.providers.provider_names import AUTO
from onward.quantities import parse_bytes

if TYPE_CHECKING:
    from onward.compress.learned_rounding import tune_settings
    from onward.compress.learned_rounding.tune_settings import Tune
else:  # it loads the losses
    tune_settings = LazyModule("onward.compress.learned_rounding.tune_settings")

THIS = "this"
PROCESSORS = (THIS, ALL)
FORMATS = {  # what a user writes, and the format's name
    "int8": "int8",
    "int4": "int4",
    "int2": "int2",
    "fp16": "fp16",
    "float16": "fp16",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "auto": "auto",
}


@dataclass(frozen=True, kw_only=True)
class QuantizeSettings:
    """What `quantize` was asked for, checked.

    Attributes:
        to: "int8", "int4", "int2", "fp16", "bf16" or "auto"
        drop: the share of quality that may be lost
        provider: the full name of the provider that will run the model, or "auto"
        bits: the average bits of a weight, for int4 and int2
        size: the bytes that the file may have, for int4 and int2
        block: weights that share a scale, for int4 and int2
        method: how weights are rounded, for int4 and int2
        processors: "this": those that compute as this one does; or "all", for int8
        tune: settings of learned rounding, or None
        seed: of random feeds and of learned rounding
    """

    to: str
    drop: float
    provider: str
    bits: float | None = None
    size: int | None = None
    block: int | None = None
    method: str = "auto"
    processors: str = THIS
    tune: Tune | None = None
    seed: int = 0

    @property
    def is_for_size(self) -> bool:
        """Whether the format is asked for to save bytes, even where it costs time."""
        return self.to in ("int4", "int2")

    @property
    def is_sized(self) -> bool:
        """Whether bits or bytes are asked for: they are kept, and the loss is reported."""
        return self.is_for_size and (self.bits is not None or self.size is not None)


def read_settings(
    *,
    to: str,
    drop: float | str,
    provider: str,
    bits: float | None,
    size: int | str | None,
    block: int | None,
    method: str,
    processors: str | None,
    tune: Any,
    seed: int,
) -> QuantizeSettings:
    """Check the arguments of `quantize` before anything is opened."""
    if to not in FORMATS:
        raise OptionError(f"no format {to!r}\nit must be one of {', '.join(FORMATS)}")
    form = FORMATS[to]
    for name, given in (("bits", bits), ("size", size), ("block", block)):
        if given is not None and form not in ("int4", "int2", "auto"):
            raise OptionError(f"{name} is a setting of int4 and int2, not of {to}\nleave it out")
    if processors not in (None, *PROCESSORS):
        raise OptionError(f"processors must be {' or '.join(PROCESSORS)}, not {processors!r}")
    if processors is not None and form not in ("int8", "auto"):
        raise OptionError(f"processors are a setting of int8, not of {to}\nleave it out")
    if method != "auto" and form not in ("int4", "int2", "auto"):
        raise OptionError(f"method is a setting of int4 and int2, not of {to}\nleave it out")
    if tune is not None and form in ("fp16", "bf16"):
        raise OptionError(f"tune learns how to round to integers, not to {to}\nleave it out")
    if bits is not None and not 2 <= bits <= 8:
        raise OptionError(f"bits must be between 2 and 8, not {bits:g}")
    return QuantizeSettings(
        to=form,
        drop=read_drop(drop),
        provider=read_provider(provider),
        bits=bits,
        size=None if size is None else read_bytes(size),
        block=block,
        method=method,
        processors=processors or THIS,
        tune=read_tune(tune, seed),
        seed=seed,
    )


def read_drop(given: float | str) -> float:
    """A share: 0.01, "0.01" or "1%".

    >>> read_drop("1%"), read_drop(0.02)
    (0.01, 0.02)
    """
    text = str(given).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise OptionError(
            f"drop must be a share from 0 up to 1, such as 0.01 or '1%', not {given!r}"
        )
    return share


def read_bytes(given: int | str) -> int:
    """A number of bytes: 1000000, "100MB", "1.5GiB".

    >>> read_bytes("100MB"), read_bytes(2048)
    (100000000, 2048)
    """
    found = parse_bytes(str(given))
    if not found:
        raise OptionError(f"size must be a number of bytes, such as '100MB', not {given!r}")
    return int(found)


def read_tune(given: Any, seed: int = 0) -> Tune | None:
    """Settings of learned rounding: a time ("5min", or seconds), a number of steps, or a Tune."""
    if isinstance(given, str):
        return replace(tune_settings.Tune.read(given), seed=seed)
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return tune_settings.Tune(seconds=float(given), seed=seed)
    if given is not None and not isinstance(given, tune_settings.Tune):
        raise OptionError(f"tune must be a time, such as '5min', or a Tune, not {given!r}")
    return given


def read_provider(given: str) -> str:
    """The full name of a provider of this machine, or "auto"."""
    if given == AUTO:
        return AUTO
    name = full_name(given)
    if name not in available():
        raise ProviderMissing(f"{name} is not on this machine\n{install_hint(name)}")
    return name
