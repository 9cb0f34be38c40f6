"""Options of architectures: read from signatures, checked, parsed from texts."""

from __future__ import annotations

from typing import Any

import pytest

from onward.errors import OptionError
from onward.runner.architectures.architecture_options import options_of
from onward.runner.architectures.new_model import ARCHITECTURES, new_model

INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("resnet", {"dept": 18}, "resnet has no option 'dept'\ndid you mean 'depth'"),
    ("resnet", {"depth": 19}, "depth must be one of 18, 34, 50, 101, not 19"),
    ("resnet", {"classes": 0}, "classes must be a whole number, at least 1, not 0"),
    ("resnet", {"classes": True}, "classes must be a whole number, at least 1, not True"),
    ("resnet", {"image": (3, 32)}, "image must be 3 sizes, such as 3x32x32"),
    ("mlp", {"hidden": ()}, "hidden must be sizes, such as 128,128"),
    ("mlp", {"dropout": 1.0}, "dropout must be a number from 0 to below 1, not 1.0"),
    ("mlp", {"activation": "rleu"}, "activation must be one of relu, gelu, tanh"),
    ("mobilenet", {"width": 0}, "width must be a number from 0.1 to 16"),
    ("unet", {"batch_norm": 1}, "batch_norm must be True or False"),
    ("unet", {"image": (3, 30, 32)}, "must be a multiple of 16, not 30\ngive 16 or 32"),
    ("vit", {"patch": 5}, "must be a multiple of 5, not 32\ngive 30 or 35"),
    ("autoencoder", {"image": (1, 2, 4)}, "must be a multiple of 4, not 2\ngive 4"),
    ("gpt2", {"heads": 3}, "heads must divide the width of 128 evenly, not 3\ngive 1, 2, 4"),
    ("gpt2", {"size": "huge"}, "size must be one of tiny, small, medium, large, xl"),
    ("squeezenet", {"image": (3, 7, 9)}, "at least 8 pixels high and wide, not 3x7x9"),
    ("cnn", {"image": (1, 2, 2)}, "at least 4 pixels high and wide, not 1x2x2"),
]


@pytest.mark.parametrize(("name", "options", "message"), INVALID)
def test_invalid_option_names_the_valid_values(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError) as raised:
        new_model(name, **options)
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_option_is_explained_and_its_default_is_valid(name: str) -> None:
    for option in options_of(ARCHITECTURES[name]).values():
        assert option.explanation
        assert option.check(name, option.default) == option.default
        if option.default is not None and option.kind is not bool:
            assert option.parse(option.show(option.default)) == option.default
