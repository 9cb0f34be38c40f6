"""Columns of texts for language models: the texts of a column, joined and cut into blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onward.errors import DataError, OptionError
from onward.message_text import list_names
from onward.runner.config import TrainConfig
from onward.runner.data.characters import CharacterVocabulary
from onward.runner.data.dataset import TEXT, Column, Dataset, read_chunks
from onward.runner.data.text_files import NEXT_TOKENS, MaskedBlocks, Vocabulary, join_texts
from onward.runner.data.text_tokenizer import MASK, TOKENS, TYPES
from onward.runner.plan.block_size import block_size
from onward.runner.plan.model_shapes import ModelPorts, choose_output
from onward.runner.plan.target_column import used_columns
from onward.runner.plan.token_inputs import FoundTokenizer, text_columns, token_inputs
from onward.runner.plan.training_data import TrainingData
from onward.runner.plan.training_plan import ChosenSetting

_TOKEN_NAMES = (TOKENS, MASK, TYPES, "input_ids")  # columns of lists that are no labels


def open_text_column(
    config: TrainConfig,
    ports: ModelPorts,
    opened: TrainingData,
    length: int | None,
    known: Vocabulary | None,
    tokenizer: FoundTokenizer | None,
) -> tuple[TrainConfig, TrainingData]:
    """The data of a language model as blocks of tokens, where it has a column of texts.

    The config is returned without what it says about columns, which the blocks do not have. Data
    of other models, and of other kinds, is returned as it is. `length` are the positions that the
    model has, `known` is the vocabulary of a model that was trained on text before.
    """
    port = _token_port(config, ports)
    if port is None or opened.vocabulary is not None:
        return config, opened
    columns = used_columns(config, opened.training.columns)
    column = _choose_column(config, ports, columns, port)
    if column is None:
        return config, opened
    tokens = next(each for each in ports.inputs if each.name == port)
    block, why = block_size(config, tokens, length)
    choices = []
    vocabulary, word = known, "characters"
    if tokenizer is not None:
        found, choice = tokenizer.read()
        vocabulary, word = replace(found, columns=(), length=None, fixed=False), "tokens"
        choices.append(choice)
    parts = [opened.training, *([] if opened.validation is None else [opened.validation])]
    if vocabulary is None:
        chunks = (texts for part in parts for _, texts in read_chunks(part, column))
        vocabulary = CharacterVocabulary.of(["\n", *(text for texts in chunks for text in texts)])
    blocks: list[Dataset] = [join_texts(part, column, block, vocabulary) for part in parts]
    if MASK in token_inputs(ports).values():
        blocks = [MaskedBlocks(each) for each in blocks]
    choices += [
        ChosenSetting("text", column, f"{len(opened.training):,} rows, joined; the next token"),
        ChosenSetting("block", f"{block} {word}", why),
    ]
    rest = {name: listed for name, listed in (config.inputs or {}).items() if name != port}
    config = config.model_copy(update={"inputs": rest or None, "ignore_columns": []})
    held_out = blocks[1] if len(blocks) > 1 else None
    return config, TrainingData(blocks[0], held_out, (*opened.choices, *choices), vocabulary)


def _token_port(config: TrainConfig, ports: ModelPorts) -> str | None:
    """The input of tokens of a language model: scores for each token, and no loss of its own."""
    if config.loss == "output" or not ports.endings:
        return None
    scores = choose_output(ports, config.output, None).scores.output
    found = [name for name, field in token_inputs(ports).items() if field == TOKENS]
    return found[0] if found and len(scores.shape) == 3 else None


def _choose_column(
    config: TrainConfig, ports: ModelPorts, columns: Mapping[str, Column], port: str
) -> str | None:
    """The column of texts; None if the data has labels of tokens, or no texts."""
    if config.target not in (None, NEXT_TOKENS):
        if config.target not in columns or columns[config.target].dtype != TEXT:
            return None
        raise DataError(
            f"the target {config.target!r} has texts: a language model predicts the next token of "
            f"its own text\nleave target out, and name the text: inputs={{{port!r}: "
            f"[{config.target!r}]}}"
        )
    for name in (config.inputs or {}).get(port, ()):
        if name in columns and columns[name].is_number and not columns[name].shape:
            raise DataError(
                f"inputs: {port!r} takes texts or lists of tokens, column {name!r} has "
                f"{columns[name]}\nname a column of texts"
            )
    fed = {each.name.lower() for each in ports.inputs} | set(_TOKEN_NAMES)
    if any(_has_labels(each) for name, each in columns.items() if name.lower() not in fed):
        return None
    texts = text_columns(config, token_inputs(ports), columns, config.target)
    if len(texts) > 1:
        raise OptionError(
            f"inputs: a language model reads one column of texts, not {list_names(texts)}\n"
            "join them in the data, and name one"
        )
    return texts[0] if texts else None


def _has_labels(column: Column) -> bool:
    """Whether a row has a list of whole numbers: one for each token, perhaps."""
    return column.is_number and column.dtype.kind in "iu" and len(column.shape) == 1
