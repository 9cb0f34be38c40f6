"""docs/extend.md: every name that an extension may import exists."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs/extend.md"
NAMES = sorted(set(re.findall(r"`(onward\.[\w.]+)`", PAGE.read_text("utf-8"))))


def test_the_page_lists_names() -> None:
    assert "onward.gradients.formula.formula" in NAMES and len(NAMES) > 10


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(import_module(module), attribute)
    except AttributeError:
        found = import_module(name)
    assert found is not None
