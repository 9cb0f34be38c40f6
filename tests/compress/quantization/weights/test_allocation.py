"""Formats under a budget."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.compress.quantization.weights.allocation import Option, allocate
from onward.errors import OptionError

_OPTIONS = st.lists(
    st.builds(
        lambda size, error: Option((size, error), size, error),
        st.integers(1, 100),
        st.floats(0, 1),
    ),
    min_size=1,
    max_size=5,
)


@given(st.dictionaries(st.text(max_size=3), _OPTIONS, min_size=1, max_size=6), st.integers(0, 600))
@settings(max_examples=100, deadline=None)
def test_an_allocation_never_exceeds_its_budget(
    options: dict[str, list[Option[tuple[int, float]]]], budget: int
) -> None:
    least = sum(min(each.nbytes for each in listed) for listed in options.values())
    if least > budget:
        with pytest.raises(OptionError, match="in the smallest formats"):
            allocate(options, budget)
        return
    chosen = allocate(options, budget)
    assert set(chosen) == set(options)
    assert sum(size for size, _ in chosen.values()) <= budget


def test_the_budget_goes_where_it_removes_the_most_error() -> None:
    options = {
        name: [Option("int4", 10, error), Option("int8", 20, 0.0)]
        for name, error in (("a", 0.1), ("b", 0.5), ("c", 0.2))
    }
    assert allocate(options, 45) == {"a": "int4", "b": "int8", "c": "int4"}
    assert allocate(options, 60) == dict.fromkeys("abc", "int8")
