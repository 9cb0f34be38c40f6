"""Whether another provider may run an operator that onnxruntime fails to run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onward.providers.choose import TORCH, ProviderChoice
from onward.providers.options import SessionOptions
from onward.sessions.failed_operators import choose_without

LISTED = (("CPUExecutionProvider", {}), (TORCH, {}))
CHOICE = ProviderChoice(LISTED, (), named=False)


def test_an_operator_moves_once() -> None:
    options = SessionOptions()
    moved = choose_without("Det", CHOICE, options)
    assert moved == replace(CHOICE, failed=frozenset(["Det"]))
    assert choose_without("Det", moved, options) is None
    both = choose_without("Erf", moved, options)
    assert both is not None and both.failed == {"Det", "Erf"}


@pytest.mark.parametrize("name", ["disable_fallback", "isolated"])
def test_options_keep_operators_where_they_are(name: str) -> None:
    assert choose_without("Det", CHOICE, SessionOptions(**{name: True})) is None


def test_operators_stay_on_named_providers() -> None:
    assert choose_without("Det", replace(CHOICE, named=True), SessionOptions()) is None
