"""block_size: the tokens of a row of text, by the config or by the model."""

from __future__ import annotations

from onward.errors import OptionError
from onward.runner.config import TrainConfig
from onward.runner.plan.model_shapes import TensorPort

_BLOCK = 128  # tokens, where neither the model nor the config says a length


def block_size(config: TrainConfig, tokens: TensorPort, length: int | None) -> tuple[int, str]:
    """The size and its reason; `length` are the positions that the model has."""
    fixed = tokens.shape[1]
    if config.block is not None:
        if fixed is not None and fixed != config.block:
            raise OptionError(
                f"block is {config.block}, but the model's {tokens.name!r} takes {fixed} tokens\n"
                "leave block out"
            )
        if length is not None and config.block > length:
            raise OptionError(
                f"block is {config.block}, but the model has {length} positions\n"
                f"give at most block={length}"
            )
        return config.block, "as given"
    if fixed is not None:
        return fixed, f"the model's {tokens.name!r} takes {fixed} tokens"
    if length is not None:
        return length, f"the model has {length} positions"
    return _BLOCK, f"the model's {tokens.name!r} takes any length"
