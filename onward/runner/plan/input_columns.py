"""Which columns feed which input of the model: by setting, by name, or by shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onward.errors import ColumnMissing, DataError, OptionError
from onward.message_text import list_names, suggest_names
from onward.runner.config import CHARACTERS, TrainConfig
from onward.runner.data.dataset import IMAGE, TEXT, Column
from onward.runner.plan.model_shapes import ModelPorts, TensorPort
from onward.runner.plan.training_plan import ChosenSetting

Matched = dict[str, tuple[str, ...]]  # columns by input


def match_inputs(
    config: TrainConfig,
    columns: Mapping[str, Column],
    ports: ModelPorts,
    target: str | None,
    keep_one: bool,
    unread: Sequence[str] = (),
) -> tuple[Matched, list[ChosenSetting]]:
    """The columns of every input, and why.

    `keep_one`: the target is not known by name, so columns that no input needs may be left.
    `unread`: columns of the data whose type cannot be read, for the message of an error.
    """
    matched, choices = _given(config, columns, ports)
    free = [name for name in columns if name != target and name not in _taken(matched)]
    for port in ports.inputs:
        same = next((name for name in free if name.lower() == port.name.lower()), None)
        if same is not None and _is_one_of_many(same, port, free, columns):
            same = None
        if port.name not in matched and same is not None:
            matched[port.name] = (same,)
            choices.append(ChosenSetting(f"input {port.name}", same, "the same name"))
            free.remove(same)
    rest = [port for port in ports.inputs if port.name not in matched]
    for port in rest:
        fitting = [name for name in free if _may_feed(columns[name], port)]
        arrays = [name for name in fitting if _is_array(columns[name])]
        alone = arrays if len(arrays) == 1 else fitting
        if len(alone) == 1 and (arrays or len(rest) > 1 or len(free) == 1):
            why = "the only column that fits" if len(free) > 1 else "the only column"
            matched[port.name] = (alone[0],)
            choices.append(ChosenSetting(f"input {port.name}", alone[0], why))
            free.remove(alone[0])
            continue
        if len(arrays) > 1 and len(rest) == 1:  # not the other columns, which nobody named either
            raise _unmatched(port, arrays, columns, config.tokenizer)
        joined = _joined(port, free, columns, keep_one) if len(rest) == 1 else []
        if not joined:
            raise _unmatched(port, free, columns, config.tokenizer, unread)
        matched[port.name] = tuple(joined)
        shown = ", ".join(joined) if len(joined) < 6 else f"{joined[0]} ... {joined[-1]}"
        choices.append(ChosenSetting(f"input {port.name}", shown, f"{len(joined)} columns, joined"))
        free = [name for name in free if name not in joined]
    return matched, choices


def _given(
    config: TrainConfig, columns: Mapping[str, Column], ports: ModelPorts
) -> tuple[Matched, list[ChosenSetting]]:
    matched: Matched = {}
    known = [each.name for each in ports.inputs]
    for name, listed in (config.inputs or {}).items():
        if name not in known:
            hint = suggest_names(name, known, "its inputs are")
            raise OptionError(f"inputs: the model has no input {name!r}\n{hint}")
        if not listed:
            raise OptionError(f"inputs: no columns are given for {name!r}\nname at least one")
        for column in listed:
            if column not in columns:
                hint = suggest_names(column, columns, "its columns are")
                raise ColumnMissing(f"inputs: the data has no column {column!r}\n{hint}")
        matched[name] = tuple(listed)
    return matched, [
        ChosenSetting(f"input {n}", ", ".join(c), "as given") for n, c in matched.items()
    ]


def _is_one_of_many(
    name: str, port: TensorPort, free: Sequence[str], columns: Mapping[str, Column]
) -> bool:
    """Whether a column called as the input is only one of the numbers that it takes: x of x, y."""
    width = _width(port)
    if width in (None, 1) or _is_array(columns[name]) or columns[name].dtype == TEXT:
        return False
    return sum(not _is_array(columns[each]) for each in free) >= (width or 0)


def _joined(
    port: TensorPort, free: Sequence[str], columns: Mapping[str, Column], keep_one: bool
) -> list[str]:
    """All free columns that are one value each; with `keep_one`, all but the last if that fits."""
    single = [name for name in free if not _is_array(columns[name])]
    if not port.is_float or len(port.shape) < 2:
        return []
    width = _width(port)
    if keep_one and width is not None and len(single) == width + 1:
        return single[:-1]  # the last column of a table is often the target
    return single


def _may_feed(column: Column, port: TensorPort) -> bool:
    """Whether one column alone can be the input, by its rank and type."""
    if column.dtype == TEXT or port.is_text:
        return column.dtype == TEXT and port.is_text and _width(port) in (1, None)
    if column.dtype == IMAGE:
        return len(port.shape) == 4
    if not port.is_float and column.dtype.kind == "f":
        return False
    if not _is_array(column):
        return _width(port) in (1, None) and len(port.shape) <= 2
    sizes, rest = column.shape, port.rest
    if None in sizes:
        return len(sizes) == len(rest)
    count = 1
    for size in sizes:
        count *= size or 1
    if _width(port) is not None:
        return count == _width(port)
    layouts = [sizes]
    if len(sizes) == 3:  # images may have their channels first or last
        layouts += [sizes[1:] + sizes[:1], sizes[-1:] + sizes[:-1]]
    same_shape = any(
        len(each) == len(rest) and all(m in (n, None) for m, n in zip(rest, each))
        for each in layouts
    )
    return same_shape or (len(rest) == len(sizes) + 1 and 1 in (rest[0], rest[-1]))


def _is_array(column: Column) -> bool:
    return column.dtype == IMAGE or bool(column.shape)


def _width(port: TensorPort) -> int | None:
    """The numbers of one row; None if a size is not known."""
    width = 1
    for size in port.rest:
        if size is None:
            return None
        width *= size
    return width


def _taken(matched: Matched) -> set[str]:
    return {name for listed in matched.values() for name in listed}


def texts_for_tokens(port: TensorPort, column: str, tokenizer: str | None) -> DataError:
    """The error of texts that no tokenizer makes tokens of."""
    advice = "give its tokenizer.json as tokenizer (--tokenizer), or write tokens as lists into"
    if tokenizer == CHARACTERS:
        advice = f"{tokenizer} are tokens of language models only: {advice}"
    wanted = str(port) if port.is_float else f"tokens ({port})"
    return DataError(
        f"the model's input {port.name!r} takes {wanted}, column {column!r} has texts\n"
        f"{advice} the data"
    )


def _unmatched(
    port: TensorPort,
    free: Sequence[str],
    columns: Mapping[str, Column],
    tokenizer: str | None,
    unread: Sequence[str] = (),
) -> DataError:
    texts = [name for name in free if columns[name].dtype == TEXT]
    if texts and not port.is_float and not port.is_text:
        return texts_for_tokens(port, texts[0], tokenizer)
    shown = ", ".join(f"{name!r} ({columns[name]})" for name in list(free)[:8]) or "none"
    if not free and unread:
        return DataError(
            f"no column is left for the model's input {port.name!r}, {port}: "
            f"{list_names(unread[:8])} {'has' if len(unread) == 1 else 'have'} "
            "values that cannot be read (nested, or mixed)\n"
            "write their fields as columns of their own"
        )
    return DataError(
        f"which column feeds the model's input {port.name!r}, {port}? left are {shown}\n"
        f"say it: inputs={{{port.name!r}: [{list_names(free[:1]) if free else '...'}]}}"
    )
