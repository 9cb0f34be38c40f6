"""What cannot be captured runs in PyTorch: the reasons, and the warning that gives them."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils import checkpoint as checkpointing

from onward.errors import OnwardError

# what checkpoint(use_reentrant=False) calls
_RECOMPUTE = "_checkpoint_without_reentrant_generator"
_REENTRANT = checkpointing.CheckpointFunction
_NUMBERS = re.compile(r"\d+")
_CHECKPOINT = "it calls torch.utils.checkpoint"


class CannotCapture(OnwardError, RuntimeError):
    """A module, or a part of it, cannot be captured; the message says why."""


class Checkpointed(CannotCapture):
    """A module calls torch.utils.checkpoint: its parts are captured, it runs in PyTorch."""


class CustomFunction(CannotCapture):
    """A module calls a torch.autograd.Function, whose backward PyTorch runs."""


class Differentiates(CannotCapture):
    """A forward computes gradients: its parts are not captured, they may get second gradients."""


class UnsupportedData(CannotCapture):
    """A module takes or returns an object that is not made of tensors and constants."""


class Slower(CannotCapture):
    """A captured module is slower than PyTorch itself, which was asked for if it is faster."""


class Hooked(CannotCapture):
    """A submodule has hooks, which a captured graph would not call."""


class Sharded(CannotCapture):
    """FSDP2 gathers the parameters of submodules one by one: they are captured separately."""


class FallbackWarning(UserWarning):
    """A module, or a part of it, runs in PyTorch instead of on the captured graph."""


# Called for each fallback, with the name of the part ("" is the module), its class, and the reason.
Report = Callable[[str, str, CannotCapture], None]


def report_fallbacks(policy: str) -> Report:
    """Warn of fallbacks, once of each cause, or refuse them: "warn", "quiet", "forbid"."""
    warned: set[str] = set()

    def report(path: str, kind: str, reason: CannotCapture) -> None:
        where = f"{path!r} ({kind})" if path else kind
        if policy == "forbid" and not isinstance(reason, Slower):
            raise CannotCapture(
                f"{where} cannot be captured: {reason}\n"
                'let PyTorch run it: ModuleOptions(fallback="warn")'
            ) from reason
        text = f"{where} falls back to PyTorch: {reason}"
        # a module and its submodules often have one cause: it is named once
        cause = _NUMBERS.sub("", str(reason))
        is_expected = isinstance(reason, (Checkpointed, Sharded, Slower))
        is_repeated = cause in warned or (isinstance(reason, Hooked) and bool(path))
        if policy == "quiet" or is_expected or is_repeated:
            return
        warned.add(cause)
        warnings.warn(text, FallbackWarning, stacklevel=2)

    return report


@contextmanager
def refuse_custom_gradients() -> Iterator[None]:
    """Refuse, while a module is traced, what would lose its own backward in the trace.

    torch.export follows only the forward of a torch.autograd.Function, and does not recompute what
    torch.utils.checkpoint recomputes.
    """
    function: Any = torch.autograd.Function
    apply, recompute = function.__dict__["apply"], checkpointing.__dict__[_RECOMPUTE]
    thread = threading.get_ident()  # others go on as usual

    def refuse_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return apply.__get__(None, cls)(*args, **kwargs)
        if cls is _REENTRANT:
            raise Checkpointed(_CHECKPOINT)
        if cls.__module__.startswith("torch.") and cls is not BackwardHookFunction:
            return apply.__get__(None, cls)(*args, **kwargs)  # torch's own, which it can trace
        raise CustomFunction(f"it calls {cls.__qualname__}, a torch.autograd.Function")

    def refuse_checkpoint(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return recompute(*args, **kwargs)
        raise Checkpointed(_CHECKPOINT)

    function.apply = classmethod(refuse_apply)
    setattr(checkpointing, _RECOMPUTE, refuse_checkpoint)
    try:
        yield
    finally:
        function.apply = apply
        setattr(checkpointing, _RECOMPUTE, recompute)
