"""register_gradient: accepts gradients in the peer's spelling, which its own engine needs.

onward.Module has a rule for every differentiable operator; docs/extend.md says how to replace one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from onward.training.ortmodule._logger import LOGGER

Definition = TypeVar("Definition", bound=Callable[..., Any])


def register_gradient(
    domain: str, name: str, *attributes: str
) -> Callable[[Definition], Definition]:
    """Accept a gradient for an operator; Onward's own rule is used."""

    def register(definition: Definition) -> Definition:
        operator = "::".join(part for part in (domain, name, *attributes) if part)
        LOGGER.info("register_gradient(%s) has no effect: Onward's own rule is used", operator)
        return definition

    return register
