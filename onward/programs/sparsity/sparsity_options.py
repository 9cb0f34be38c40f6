"""Sparsity: which tokens of a training step are left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onward.programs.derived_feeds import BUCKET
from onward.settings import (
    check_fields,
    explain_frozen,
    explain_keywords,
    integer,
    setting_error,
    true_or_false,
)


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class Sparsity:
    """What a training step leaves out, where that changes neither loss nor gradients.

    Attributes:
        padding: tokens that the attention mask hides
        labels: rows of scores whose label is the loss's ignore_index
        bucket: the number of tokens is rounded up to a multiple, so that compiled steps are reused

    >>> Sparsity(labels=False).padding
    True
    """

    padding: bool = True
    labels: bool = True
    bucket: int = BUCKET

    def __post_init__(self) -> None:
        check_fields(self, padding=true_or_false, labels=true_or_false, bucket=integer(1))

    @classmethod
    def of(cls, option: str | Sparsity) -> Sparsity:
        """The Sparsity of an option: "off", "auto" or a Sparsity.

        >>> Sparsity.of("off").padding, Sparsity.of("auto").padding
        (False, True)
        """
        if isinstance(option, Sparsity):
            return option
        return cls() if option == "auto" else OFF


OFF = Sparsity(padding=False, labels=False)


def sparsity_option(name: str, value: Any) -> str | Sparsity:
    """Check an option: "off", "auto" or a Sparsity."""
    if isinstance(value, Sparsity) or value in ("off", "auto"):
        return value  # type: ignore[no-any-return]
    raise setting_error(
        name, "'off', 'auto' or a Sparsity", value, "such as Sparsity(padding=True)"
    )
