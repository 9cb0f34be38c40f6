"""Which engines compute in 16 bits: those that would only emulate it are refused.

A processor without instructions for bfloat16 or float16 converts every number to float32 and back,
which is slower than training in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from pathlib import Path

from onward.errors import ProviderError

# the flags of /proc/cpuinfo, on x86-64 and on ARM
_INSTRUCTIONS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16", "svebf16"},
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp", "fphp"},
}
_FLOAT8_CAPABILITY = (8, 9)  # Ada; Hopper has 9.0
_ANYWAY = "or set `emulated` in its Precision: then it runs, slowly"


@functools.cache
def processor_flags() -> frozenset[str]:
    """The names of this processor's instructions; empty where the system does not list them."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    found = (line.partition(":") for line in lines)
    listed = [words for key, _, words in found if key.strip() in ("flags", "Features")]
    return frozenset(listed[0].split()) if listed else frozenset()


def has_instructions(dtype: str, flags: Collection[str] | None = None) -> bool:
    """Whether a processor with these flags computes in a 16-bit type; None: this processor.

    >>> has_instructions("bfloat16", ["avx512f", "avx512_bf16"])
    True
    """
    known = processor_flags() if flags is None else flags
    return not _INSTRUCTIONS[dtype].isdisjoint(known)


def check_processor(dtype: str, flags: Collection[str] | None = None) -> None:
    """Refuse to train in a 16-bit type that the processor has no instructions for."""
    if not has_instructions(dtype, flags):
        raise ProviderError(
            f"precision: this processor has no instructions for {dtype}\n"
            f"train on a GPU, or in float32 without precision, {_ANYWAY}"
        )


def check_float8(capability: tuple[int, int] | None) -> None:
    """Refuse 8-bit products where a device has none; its CUDA capability, None: it has none."""
    if capability is None or capability < _FLOAT8_CAPABILITY:
        has = "no CUDA" if capability is None else "capability {}.{}".format(*capability)
        raise ProviderError(
            "precision: fp8 products need torch on a GPU of capability 8.9 or more; "
            f"this has {has}\n"
            f"leave `products` out of the Precision, {_ANYWAY}"
        )


def check_onnxruntime(dtype: str, provider: str) -> None:
    """Refuse to train in 16 bits with onnxruntime on a CPU."""
    if provider == "CPUExecutionProvider":
        raise ProviderError(
            f"precision: ONNX Runtime computes {dtype} in float32 on a CPU, if at all\n"
            "choose another provider, such as TorchExecutionProvider or InductorExecutionProvider, "
            f"{_ANYWAY}"
        )
