"""Names as messages list and suggest them."""

from __future__ import annotations

import pytest

from onward.names import list_names, spell_sizes, suggest_names


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        ([], "none"),
        (["it's"], '"it\'s"'),
        (iter("abcdefgh"), "'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'"),
        ("abcdefghi", "'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', ..."),
    ],
)
def test_a_list_shows_the_first_names_and_whether_there_are_more(names: str, listed: str) -> None:
    assert list_names(names) == listed


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("hiden", ["x", "hidden", "hidden"], "did you mean 'hidden'?"),
        ("fc3.w", ["fc1.w", "fc2.w", "b"], "did you mean 'fc2.w' or 'fc1.w'?"),
        ("zzz", ["x", "y", "x"], "there are 'x', 'y'"),
        ("zzz", [], "there are none"),
    ],
)
def test_a_hint_is_what_is_alike_or_what_there_is(name: str, known: list[str], hint: str) -> None:
    assert suggest_names(name, iter(known)) == hint


def test_a_size_that_is_not_known_is_a_question_mark() -> None:
    assert spell_sizes(["n", 0, None]) == "n, 0, ?" and spell_sizes([]) == ""


def test_a_hint_says_otherwise_in_other_words() -> None:
    assert suggest_names("zzz", ["x"], "the model takes") == "the model takes 'x'"
