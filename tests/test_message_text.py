"""Names and sizes in messages."""

from __future__ import annotations

import pytest

from onward.message_text import format_sizes, list_names, suggest_names


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        ([], "none"),
        (["it's"], '"it\'s"'),
        (iter("abcdefgh"), "'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'"),
        ("abcdefghi", "'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', ..."),
    ],
)
def test_list_names_shows_the_first_names(names: str, listed: str) -> None:
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
def test_suggest_names_gives_similar_names_or_a_list(
    name: str, known: list[str], hint: str
) -> None:
    assert suggest_names(name, iter(known)) == hint


def test_format_sizes_writes_unknown_sizes_as_question_marks() -> None:
    assert format_sizes(["n", 0, None]) == "n, 0, ?" and format_sizes([]) == ""


def test_suggest_names_takes_other_words_for_the_list() -> None:
    assert suggest_names("zzz", ["x"], "the model takes") == "the model takes 'x'"
