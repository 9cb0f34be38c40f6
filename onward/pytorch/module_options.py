"""ModuleOptions: how a wrapped PyTorch module is captured and run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from onward.errors import OptionError
from onward.settings import (
    a_function,
    check_fields,
    choice,
    explain_frozen,
    explain_keywords,
    integer,
    optional,
    path_text,
    several,
    true_or_false,
)

PROVIDERS = ("auto", "onnxruntime", "torch", "inductor", "fastest")


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class ModuleOptions:
    """How `onward.Module` captures and runs a module.

    Attributes:
        provider: "onnxruntime" (CPU), "torch", "inductor"; "auto": onnxruntime on a CPU, else
            inductor; "fastest": onnxruntime, inductor or PyTorch itself, measured in the first
            call
        fallback: what to do with a part that cannot be captured: "warn": PyTorch runs it, with one
            warning that says why; "quiet": the same without the warning; "forbid": an error
        segments: parts of the backward pass, each of which gives its gradients to autograd when it
            ends; None: one, or, if torch.distributed is in use, one for each bucket of DDP's size
        threads: of onnxruntime; None: as many as torch has
        cuda_graphs: on a GPU, record forward and backward as CUDA graphs after a few calls: faster
            where the kernels are short, but saved values keep their memory between the steps
        save_onnx: a folder to which each captured graph is written; None: none is written
        onnx_prefix: the beginning of the names of these files
        max_programs: captures of one kind of call, for sizes and constants; more run in PyTorch
        rewrites: functions that change a captured forward graph (onnx_ir.Model), in place or by
            returning another one, before its gradient is derived

    >>> ModuleOptions(provider="torch").provider
    'torch'
    """

    provider: str = "auto"
    fallback: str = "warn"
    segments: int | None = None
    threads: int | None = None
    cuda_graphs: bool = True
    save_onnx: str | os.PathLike[str] | None = None
    onnx_prefix: str = ""
    max_programs: int = 32
    rewrites: tuple[Callable[[Any], Any], ...] = ()

    def __post_init__(self) -> None:
        check_fields(
            self,
            provider=choice(*PROVIDERS),
            fallback=choice("warn", "quiet", "forbid"),
            segments=optional(integer(1)),
            threads=optional(integer(1)),
            cuda_graphs=true_or_false,
            save_onnx=optional(path_text),
            max_programs=integer(1),
            rewrites=several(a_function, "a list of functions"),
        )

    @classmethod
    def of(cls, given: ModuleOptions | Mapping[str, Any] | None) -> ModuleOptions:
        """Options from options, a mapping of settings, or None."""
        if isinstance(given, cls):
            return given
        if given is None or isinstance(given, Mapping):
            return cls(**dict(given or {}))
        known = ", ".join(field.name for field in fields(cls))
        raise OptionError(
            f"options must be ModuleOptions or a dictionary, not {type(given).__name__}\n"
            f"its settings are: {known}"
        )
