"""The providers that a config asks for."""

from __future__ import annotations

from onward.providers.choose import Asked
from onward.providers.provider_names import AUTO
from onward.providers.provider_text import read_provider
from onward.runner.config import TrainConfig


def asked_providers(config: TrainConfig) -> Asked:
    """The providers of a config, as sessions take them."""
    if config.provider is None or config.provider.lower() == AUTO:
        return None if config.provider is None else AUTO
    return [read_provider(config.provider)]
