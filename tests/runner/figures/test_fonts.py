"""Fonts of PNG figures."""

from __future__ import annotations

import pytest

from onward.runner.figures import fonts

pytest.importorskip("PIL")


def test_letters_that_no_font_has_lose_their_accents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "_SYSTEM", ("there-is-no-such-font.ttf",))
    font, text = fonts.font_for("röt", 20.0)
    assert text == "rot" and font is fonts.font_for("red", 20.0)[0]


def test_a_font_has_the_letters_that_it_draws() -> None:
    font, text = fonts.font_for("röt", 20.0)
    missing = bytes(font.getmask("\uffff"))
    assert all(bytes(font.getmask(letter)) != missing for letter in text)
    assert fonts.font_for("red", 20.0)[1] == "red"
