"""Providers as texts, as on the command line: torch:device=cuda,mode=max-autotune."""

from __future__ import annotations

from typing import Any

from onward.errors import OptionError
from onward.providers.choose import full_name
from onward.providers.provider_names import AUTO

NamedProvider = tuple[str, dict[str, Any]]  # its name and its options


def read_provider(text: str) -> NamedProvider:
    """The full name and the options of a provider.

    >>> read_provider("torch:device=cpu")
    ('TorchExecutionProvider', {'device': 'cpu'})
    """
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise OptionError(f"provider {text}: an option must be NAME=VALUE, not {part!r}")
        options[key] = {"true": True, "false": False, "none": None}.get(value.lower(), value)
    return name.lower() if name.lower() == AUTO else full_name(name), options
