"""How providers are named: in full, as onnxruntime does, and short, as people type them."""

from __future__ import annotations

from collections.abc import Iterable

from onward.errors import OptionError
from onward.names import suggest_names

AUTO = "auto"  # no provider: the fastest of them, by measurement
_SUFFIX = "ExecutionProvider"
_ALIASES = {"ort": "cpu", "onnxruntime": "cpu"}


def short_name(provider: str) -> str:
    """A provider's name as one types it.

    >>> short_name("CPUExecutionProvider")
    'cpu'
    """
    return provider.removesuffix(_SUFFIX).lower()


def find_name(text: str, known: Iterable[str], here: Iterable[str]) -> str:
    """The full name, among `known`, of a provider written in full or short, in any case.

    `here` are the providers that an error offers instead: those of this machine.

    >>> find_name("Torch", ["TorchExecutionProvider"], [])
    'TorchExecutionProvider'
    """
    if not isinstance(text, str):
        raise OptionError(f"a provider is a name such as 'cpu', or (name, options), not {text!r}")
    wanted = _ALIASES.get(text.lower(), text.lower())
    for name in known:
        if wanted in (name.lower(), short_name(name)):
            return name
    offered = list(map(short_name, here))
    stem = wanted.removesuffix("provider").removesuffix("execution")
    alike = suggest_names(stem, offered, "")
    hint = f"; {alike}" if alike.startswith("did you mean") else ""
    raise OptionError(f"no provider {text!r}\nthis machine has {', '.join(offered)}{hint}")
