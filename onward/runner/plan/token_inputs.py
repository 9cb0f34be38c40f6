"""Inputs that a tokenizer makes of texts: which inputs they are, and of which columns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onward.errors import DataError, OptionError
from onward.message_text import list_names
from onward.runner.config import CHARACTERS, TrainConfig
from onward.runner.data.dataset import TEXT, Column
from onward.runner.data.text_tokenizer import MASK, TOKENS, TYPES, TextTokenizer, read_tokenizer
from onward.runner.plan.block_size import block_size
from onward.runner.plan.feed_source import FeedSource
from onward.runner.plan.model_shapes import ModelPorts
from onward.runner.plan.preprocessing import Preprocessing
from onward.runner.plan.training_plan import ChosenSetting

_FILE = "tokenizer.json"
_TEXT_NAMES = ("text", "sentence", "review", "content", "document", "body", "message", "comment")
_LENGTH = 512  # tokens, where neither the model, the tokenizer nor the config says a length


@dataclass(frozen=True)
class FoundTokenizer:
    """Where a run's tokenizer is; it is read when texts need it."""

    source: Path | TextTokenizer
    why: str

    def read(self) -> tuple[TextTokenizer, ChosenSetting]:
        """The tokenizer, and what the plan shows of it."""
        if isinstance(self.source, TextTokenizer):
            shown, opened = "of the model", self.source
        else:
            shown, opened = str(self.source), read_tokenizer(self.source)
        return opened, ChosenSetting("tokenizer", shown, f"{self.why}; {opened.size:,} tokens")


@dataclass(frozen=True)
class TokenizedInputs:
    """The inputs that are made of texts, and the tokenizer with its columns and its length."""

    sources: tuple[FeedSource, ...]
    tokenizer: TextTokenizer
    choices: tuple[ChosenSetting, ...]


def find_tokenizer(
    config: TrainConfig, model: Any, stored: Preprocessing | None
) -> FoundTokenizer | None:
    """The tokenizer of the config, the one stored with the model, or the file next to it."""
    if config.tokenizer == CHARACTERS:
        return None
    if config.tokenizer is not None:
        return FoundTokenizer(Path(config.tokenizer).expanduser(), "as given")
    known = None if stored is None else stored.vocabulary
    if isinstance(known, TextTokenizer):
        return FoundTokenizer(known, "it was stored with it")
    if known is not None:  # characters
        return None
    if isinstance(model, (str, os.PathLike)):
        path = Path(model).expanduser().parent / _FILE
        return FoundTokenizer(path, "next to the model") if path.is_file() else None
    return None


def token_inputs(ports: ModelPorts) -> dict[str, str]:
    """What inputs of tokens take: tokens, their mask or their types. Empty: it is not clear."""
    found = {}
    for port in ports.inputs:
        name = port.name.lower()
        if len(port.shape) != 2 or "position" in name:
            continue
        if "mask" in name:
            found[port.name] = MASK
        elif "type" in name or "segment" in name:
            found[port.name] = TYPES
        elif not port.is_float:
            found[port.name] = TOKENS
    return found if list(found.values()).count(TOKENS) == 1 else {}


def tokenize_columns(
    config: TrainConfig,
    ports: ModelPorts,
    columns: Mapping[str, Column],
    target: str | None,
    found: FoundTokenizer | None,
    positions: int | None,
) -> TokenizedInputs | None:
    """The inputs that a tokenizer makes of columns of texts; None where none has to.

    `positions` are those that the model has.
    """
    fields = token_inputs(ports)
    texts = text_columns(config, fields, columns, target)
    if found is None or not texts:
        return None
    opened, choice = found.read()
    given = config.inputs or {}
    chosen = [port for port in ports.inputs if port.name in fields]
    chosen = [port for port in chosen if fields[port.name] == TOKENS or port.name not in given]
    sizes = [port.shape[1] for port in chosen if port.shape[1] is not None]
    length, why = _row_length(config, ports, sizes[0] if sizes else None, positions, opened)
    tokenizer = replace(opened, columns=texts, length=length, fixed=bool(sizes))
    sources = [
        FeedSource(port.name, (fields[port.name],), {}, port.dtype, port.shape) for port in chosen
    ]
    words = {TOKENS: "tokens", MASK: "the attention mask", TYPES: "the token types"}
    choices = [
        ChosenSetting(
            f"input {each.name}", ", ".join(texts), f"{words[fields[each.name]]} of the text"
        )
        for each in chosen
    ]
    most = ChosenSetting("text length", f"{length} tokens at most", why)
    return TokenizedInputs(tuple(sources), tokenizer, (choice, *choices, most))


def with_token_inputs(
    config: TrainConfig, ports: ModelPorts, columns: Mapping[str, Column]
) -> TrainConfig:
    """The config of running text with the inputs of its tokens, and of their mask, if any."""
    fields = token_inputs(ports)
    inputs = {name: [field] for name, field in fields.items() if field in columns}
    return config.model_copy(update={"inputs": inputs}) if MASK in fields.values() else config


def without_inputs(
    config: TrainConfig, ports: ModelPorts, made: TokenizedInputs
) -> tuple[TrainConfig, ModelPorts]:
    """The config and the ports without the inputs that are made of texts."""
    done = {source.feed for source in made.sources}
    rest = {name: listed for name, listed in (config.inputs or {}).items() if name not in done}
    left = tuple(port for port in ports.inputs if port.name not in done)
    return config.model_copy(update={"inputs": rest or None}), replace(ports, inputs=left)


def text_columns(
    config: TrainConfig,
    fields: Mapping[str, str],
    columns: Mapping[str, Column],
    target: str | None,
) -> tuple[str, ...]:
    """The column of texts, or the two of pairs; empty if no input needs one."""
    port = next((name for name, field in fields.items() if field == TOKENS), None)
    if port is None:
        return ()
    given = (config.inputs or {}).get(port)
    if given is not None:
        texts = [name for name in given if name in columns and columns[name].dtype == TEXT]
        if texts and (len(texts) != len(given) or len(texts) > 2):
            raise OptionError(
                f"inputs: {port!r} takes one column of texts, or two of pairs, not "
                f"{list_names(given)}\nname one or two"
            )
        return tuple(texts)
    if any(name.lower() == port.lower() and columns[name].dtype != TEXT for name in columns):
        return ()  # the data has tokens
    taken = {name for listed in (config.inputs or {}).values() for name in listed} | {target}
    free = [name for name in columns if columns[name].dtype == TEXT and name not in taken]
    named = [name for known in _TEXT_NAMES for name in free if name.lower() == known]
    if len(free) < 2 or named:
        return tuple((named or free)[:1])
    raise DataError(
        f"which column has the text of the model's input {port!r}? {list_names(free)} are texts\n"
        f"say it: inputs={{{port!r}: [{free[0]!r}]}}; a pair of texts is two names"
    )


def _row_length(
    config: TrainConfig,
    ports: ModelPorts,
    fixed: int | None,
    positions: int | None,
    tokenizer: TextTokenizer,
) -> tuple[int, str]:
    """The tokens that a row has at most, and why."""
    port = next(each for each in ports.inputs if token_inputs(ports).get(each.name) == TOKENS)
    own = tokenizer.own_length
    is_shorter = own is not None and (positions is None or own < positions)
    if config.block is None and fixed is None and own is not None and is_shorter:
        return own, "the tokenizer's own"
    if config.block is None and fixed is None and positions is None:
        return _LENGTH, f"the model's {port.name!r} takes any length"
    return block_size(config, port, positions)
