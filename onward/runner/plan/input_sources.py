"""The feeds of a model's inputs: encoders for their columns, learnt from the training rows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

from onward.errors import DataError
from onward.message_text import list_names
from onward.runner.config import TrainConfig
from onward.runner.data.class_labels import OneHotColumn
from onward.runner.data.dataset import IMAGE, TEXT, Array, Column, Dataset, read_chunks
from onward.runner.data.encode import Encoder
from onward.runner.data.field_types import is_number
from onward.runner.data.image_pixels import ImagePixels
from onward.runner.data.number_scaling import FillMissing, Standardize
from onward.runner.plan.column_statistics import ColumnStatistics, check_mixed, compute_statistics
from onward.runner.plan.feed_source import FeedSource
from onward.runner.plan.image_layout import image_sizes
from onward.runner.plan.input_columns import Matched, texts_for_tokens
from onward.runner.plan.model_shapes import ModelPorts, TensorPort
from onward.runner.plan.row_split import RowSplit
from onward.runner.plan.training_plan import ChosenSetting

_SAMPLE = 1024  # images whose mean is that of all
_FEW = 64  # images in memory at once
_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")
_GROUPED = re.compile(r"\s*[+-]?\d{1,3}([ ,.'\u00a0\u202f]\d{3})*([.,]\d+)?\s*")  # 1,234.5
_WITH_UNIT = re.compile(r"\s*([%$€£¥]?)\s*[+-]?\d+([.,]\d+)?\s*([%$€£¥]?)\s*")  # 5 %
_ROW_NAME = re.compile(r"(^|_)(id|key|index|uuid|no|nr|date|time)$|^unnamed", re.IGNORECASE)
_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)  # orders of axes: NCHW to NHWC, and back


def make_sources(
    config: TrainConfig, ports: ModelPorts, matched: Matched, data: Dataset, rows: RowSplit
) -> tuple[tuple[FeedSource, ...], list[ChosenSetting]]:
    """How every input is made of its columns, and what is done to them.

    Categories are those of all rows: a rare one may be held out, by chance or in data of its own.
    """
    positions = rows.training
    used = [name for port in ports.inputs for name in matched[port.name]]
    floats = {name for port in ports.inputs if port.is_float for name in matched[port.name]}
    single = [name for name in dict.fromkeys(used) if _is_single(data.columns[name])]
    surveys = compute_statistics(data, [name for name in single if name in floats], positions)
    unseen = _unseen_categories(surveys, data, rows)
    for name, categories in unseen.items():
        surveys[name].categories.update(categories)
    sources, choices = [], list[ChosenSetting]()
    for port in ports.inputs:
        encoders: dict[str, tuple[Encoder, ...]] = {}
        for name in matched[port.name]:
            encoders[name] = _encoders(
                config, port, name, data, positions, surveys.get(name), choices
            )
        _check_width(port, matched[port.name], data.columns, encoders, unseen)
        turn = _transpose(port, [data.columns[name] for name in matched[port.name]])
        kept = {name: each for name, each in encoders.items() if each}
        source = FeedSource(port.name, matched[port.name], kept, port.dtype, port.shape, turn)
        sources.append(source)
    return tuple(sources), _summed(choices)


def _unseen_categories(
    surveys: Mapping[str, ColumnStatistics], data: Dataset, rows: RowSplit
) -> dict[str, set[str]]:
    """The categories of columns that only rows that are held out have."""
    held_out, positions = rows.held_out, rows.validation
    if held_out is None or positions is None:
        return {}
    known = held_out.columns
    names = [name for name in surveys if data.columns[name].dtype == TEXT and name in known]
    found = compute_statistics(held_out, [n for n in names if known[n].dtype == TEXT], positions)
    unseen = {name: each.categories - surveys[name].categories for name, each in found.items()}
    return {name: each for name, each in unseen.items() if each}


def _encoders(
    config: TrainConfig,
    port: TensorPort,
    name: str,
    data: Dataset,
    positions: Array,
    survey: ColumnStatistics | None,
    choices: list[ChosenSetting],
) -> tuple[Encoder, ...]:
    column, scaled = data.columns[name], config.standardize is not False
    if port.is_text:
        if column.dtype != TEXT:
            raise DataError(
                f"the model's input {port.name!r} takes texts, column {name!r} has {column}\n"
                f"if its values are texts, say so: types={{{name!r}: 'text'}}"
            )
        return ()
    if column.dtype == IMAGE:
        return _image_encoders(port, name, data, positions, scaled, choices)
    if column.dtype == TEXT:
        if survey is None:
            raise texts_for_tokens(port, name, config.tokenizer)
        categories = tuple(sorted(survey.categories))
        choices.append(ChosenSetting("one-hot", name, f"{len(categories)} texts"))
        return (OneHotColumn(name, categories),)
    if not port.is_float or column.dtype == bool:
        return ()
    if survey is not None:
        filled = (FillMissing(name, survey.mean),)  # of whole numbers too: a later row may lack it
        if not scaled:
            return filled
        choices.append(ChosenSetting("standardize", name, "to mean 0 and standard deviation 1"))
        return (*filled, Standardize(name, (survey.mean,), (survey.std,)))
    if column.dtype == np.uint8 and None not in column.shape:
        return (_byte_scaling(name, data, positions, scaled, choices),)
    if config.standardize:
        choices.append(ChosenSetting("standardize", name, "as given"))
        return (Standardize.fit(data, name, positions),)
    return ()


def _image_encoders(
    port: TensorPort,
    name: str,
    data: Dataset,
    positions: Array,
    scaled: bool,
    choices: list[ChosenSetting],
) -> tuple[Encoder, ...]:
    channels, height, width, _ = image_sizes(port)
    if data.columns[name].shape[0] not in (channels, None):
        raise DataError(
            f"column {name!r} has images of {data.columns[name].shape[0]} channels, the model's "
            f"input {port.name!r} takes {channels}\nconvert them, or use another model"
        )
    size = None if height is None or width is None else (height, width)
    if size is None and None in data.columns[name].shape:
        first = data.read(positions[:1], [name])[name][0]
        size = (int(first.shape[1]), int(first.shape[2]))
        choices.append(ChosenSetting("image size", f"{size[0]} x {size[1]}", "of the first image"))
    if not port.is_float:
        return ()  # the model reads bytes
    if not scaled:
        choices.append(ChosenSetting("pixels", name, "0 to 1"))
        return (ImagePixels(name, size),)
    pixels = ImagePixels.fit(data, name, _sample(positions), size=size)
    mean = ", ".join(f"{each:.3f}" for each in pixels.mean)
    choices.append(ChosenSetting("pixels", name, f"mean {mean} of the training data subtracted"))
    return (pixels,)


def _byte_scaling(
    name: str, data: Dataset, positions: Array, scaled: bool, choices: list[ChosenSetting]
) -> Standardize:
    """Arrays of bytes: one mean and one standard deviation, for pixels of any layout."""
    if not scaled:
        choices.append(ChosenSetting("pixels", name, "bytes, 0 to 1"))
        return Standardize(name, (0.0,), (255.0,))
    survey = ColumnStatistics()
    for _, some in read_chunks(data, name, _sample(positions), _FEW):
        survey.add_numbers(some.astype(np.float64).reshape(-1))
    choices.append(ChosenSetting("pixels", name, f"bytes; mean {survey.mean:.1f} subtracted"))
    return Standardize(name, (survey.mean,), (survey.std,))


def _sample(positions: Array) -> Array:
    """Rows at equal distances: the mean of all images takes no pass over all of them."""
    if len(positions) <= _SAMPLE:
        return positions
    return positions[np.linspace(0, len(positions) - 1, _SAMPLE).astype(np.int64)]


def _transpose(port: TensorPort, columns: list[Column]) -> tuple[int, ...]:
    """The order of axes that turns a column of images into the input's layout."""
    if len(columns) != 1 or len(port.shape) != 4 or len(columns[0].shape) != 3:
        return ()
    if columns[0].dtype == IMAGE:
        return _TO_LAST if image_sizes(port)[3] else ()
    sizes, rest = columns[0].shape, port.rest
    if all(m in (n, None) for m, n in zip(rest, sizes)):
        return ()
    for order in (_TO_LAST, _TO_FIRST):
        if all(m in (n, None) for m, n in zip(rest, [sizes[axis - 1] for axis in order[1:]])):
            return order
    return ()


def _check_width(
    port: TensorPort,
    names: tuple[str, ...],
    columns: Mapping[str, Column],
    encoders: Mapping[str, tuple[Encoder, ...]],
    unseen: Mapping[str, set[str]],
) -> None:
    """The numbers that columns give must be those that the input takes."""
    if None in port.rest or any(columns[name].dtype == IMAGE for name in names):
        return
    widths = [_width(columns[name], encoders[name]) for name in names]
    wanted = math.prod(size for size in port.rest if size is not None)
    if None in widths or sum(width or 0 for width in widths) == wanted:
        return
    shown = ", ".join(
        name if width == 1 else f"{name} ({width})" for name, width in zip(names[:12], widths)
    )
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    word = "columns" if len(names) > 1 else "column"
    total = sum(width or 0 for width in widths)
    for name in names:
        for encoder in encoders[name]:
            if isinstance(encoder, OneHotColumn):
                check_mixed(name, encoder.categories)
    advice = _width_advice(dict(zip(names, widths)), encoders, total - wanted)
    strange = {name: sorted(unseen[name]) for name in names if name in unseen}
    if strange and sum(map(len, strange.values())) == total - wanted:
        name, texts = next(iter(strange.items()))
        advice = (
            f"only rows that are held out have {list_names(texts[:6])} in column {name!r}: correct "
            "them, or use a model of that size"
        )
    raise DataError(
        f"the model's input {port.name!r} has {wanted} features, the {word} {shown}{more} "
        f"give{'' if len(names) > 1 else 's'} {total}\n" + advice
    )


def _width_advice(
    widths: Mapping[str, int | None], encoders: Mapping[str, tuple[Encoder, ...]], excess: int
) -> str:
    """What to correct: numbers that are texts; or leave out: an id, a date, a column too much."""
    for name in widths:
        texts = [text for each in encoders[name] for text in _texts(each)]
        if texts and (problem := _number_problem(texts)):
            return f"{name!r} has numbers {problem}"
    fitting = [name for name, width in widths.items() if width == excess]
    named = [name for name in fitting if _ROW_NAME.search(name)]
    if len(fitting) == 1 or named:
        name = (named or fitting)[0]
        return f"leave it out: ignore_columns=[{name!r}]"
    return "choose columns with inputs or ignore_columns, or use a model of that size"


def _number_problem(texts: list[str]) -> str:
    """Why texts that are numbers to a reader were not read as such, and what to do; empty: none."""
    if all(map(_COMMA.fullmatch, texts)):
        return "with a decimal comma: write them with a point"
    unread = [text for text in texts if not is_number(text)]
    if unread and all(map(_GROUPED.fullmatch, texts)):
        return f"such as {unread[0]!r}: write them without separators"
    found = [_WITH_UNIT.fullmatch(text) for text in texts]
    if all(match is not None and (match[1] or match[3]) for match in found):
        return f"such as {texts[0]!r}: write them without the unit"
    return ""


def _texts(encoder: Encoder) -> list[str]:
    """The categories of a column of texts."""
    if not isinstance(encoder, OneHotColumn):
        return []
    return [str(each) for each in encoder.categories if each != ""]


def _width(column: Column, encoders: tuple[Encoder, ...]) -> int | None:
    for encoder in encoders:
        if isinstance(encoder, OneHotColumn):
            return len(encoder.categories)
    return None if None in column.shape else math.prod(size or 1 for size in column.shape)


def _is_single(column: Column) -> bool:
    return column.dtype != IMAGE and not column.shape


def _summed(choices: list[ChosenSetting]) -> list[ChosenSetting]:
    """Many standardised columns in one line."""
    same = [each for each in choices if each.what == "standardize"]
    others = [each for each in choices if each.what != "standardize"]
    if len(same) < 2:
        return choices
    return [*others, ChosenSetting("standardize", f"{len(same)} columns", same[0].why)]
