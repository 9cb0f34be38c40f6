"""Names of providers: full, as in onnxruntime, and short, as in "cpu"."""

from __future__ import annotations

from collections.abc import Iterable

from onward.errors import OptionError
from onward.message_text import suggest_names

AUTO = "auto"  # not a provider: choose the fastest by measurement
_SUFFIX = "ExecutionProvider"
_ALIASES = {"ort": "cpu", "onnxruntime": "cpu"}


def short_name(provider: str) -> str:
    """The short name of a provider.

    >>> short_name("CPUExecutionProvider")
    'cpu'
    """
    return provider.removesuffix(_SUFFIX).lower()


def find_name(text: str, known: Iterable[str], here: Iterable[str]) -> str:
    """The full name, among `known`, of a provider written in full or short, in any case.

    `here` are the providers of this machine, which an error lists.

    >>> find_name("Torch", ["TorchExecutionProvider"], [])
    'TorchExecutionProvider'
    """
    if not isinstance(text, str):
        raise OptionError(
            f"a provider must be a name such as 'cpu', or (name, options), not {text!r}"
        )
    wanted = _ALIASES.get(text.lower(), text.lower())
    for name in known:
        if wanted in (name.lower(), short_name(name)):
            return name
    offered = list(map(short_name, here))
    stem = wanted.removesuffix("provider").removesuffix("execution")
    alike = suggest_names(stem, offered, "")
    hint = f"; {alike}" if alike.startswith("did you mean") else ""
    raise OptionError(f"no provider {text!r}\nthis machine has {', '.join(offered)}{hint}")
