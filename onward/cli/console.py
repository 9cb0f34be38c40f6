"""Printing for all verbs: a console, plain tables and readable numbers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from onward.message_text import format_sizes

_PIPE_WIDTH = 160  # columns in a pipe or a file, where lines need not be folded


def make_console(*, stderr: bool = False) -> Console:
    """A console that prints strings as they are: names may contain [brackets] and :colons:."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)


def make_table(*columns: str) -> Table:
    """A table; a column whose name begins with `>` is aligned right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        name = column.removeprefix(">")
        side = "right" if name != column else "left"
        table.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    return table


def print_table(console: Console, table: Table, title: str | None = None) -> None:
    """Print a title, which may be wider than the table, and the table."""
    if title is not None:
        console.print(title, style="bold")
    console.print(table)


def make_progress(console: Console) -> Progress:
    """A progress bar that disappears at the end; nothing where the output is not a terminal."""
    text = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), text, BarColumn(bar_width=24), TimeElapsedColumn())
    hidden = not console.is_terminal
    return Progress(*columns, console=console, transient=True, disable=hidden)


def print_pairs(console: Console, pairs: Iterable[tuple[str, str]]) -> None:
    """Print names with their descriptions, one per line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in pairs:
        grid.add_row(name, text)
    console.print(grid)


def print_json(value: Any) -> None:
    """Print JSON that any parser reads: NaN and infinities as strings."""
    print(json.dumps(_to_json(value), indent=2, ensure_ascii=False, allow_nan=False))


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    if isinstance(value, float) and value - value != 0:  # NaN and infinities
        return str(value)
    return value


def warn(console: Console, message: str) -> None:
    """Print a warning on one line."""
    console.print(Text.assemble(("warning: ", "yellow"), message), soft_wrap=True)


def show_shape(shape: Sequence[Any] | None) -> str:
    """
    >>> show_shape(["batch", 3, None]), show_shape(None)
    ('(batch, 3, ?)', '?')
    """
    return "?" if shape is None else f"({format_sizes(shape)})"
