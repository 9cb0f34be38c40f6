"""PTable: rows of text in aligned columns."""

from __future__ import annotations

from collections.abc import Sequence

from onward.errors import OptionError


class TableRow:
    """One row, with an optional table of details that is printed below it."""

    def __init__(self, columns: Sequence[object]) -> None:
        self.columns = [str(column) for column in columns]
        self.details: PTable | None = None

    def append_annotation_table(self, ptable: PTable) -> None:
        """Print a table below this row."""
        self.details = ptable


class PTable:
    """A table for the console.

    >>> table = PTable(sortable=True)
    >>> row = table.add_row(["b", 2])
    >>> row = table.add_row(["aaa", 10])
    >>> print(table.get_string())
    aaa  10
    b    2
    """

    def __init__(self, sortable: bool = False) -> None:
        self._rows: list[TableRow] = []
        self._sortable = sortable

    def add_row(self, columns: Sequence[object]) -> TableRow:
        """Add a row, which must have as many columns as the first one."""
        row = TableRow(columns)
        if self._rows and len(self._rows[0].columns) != len(row.columns):
            raise OptionError(
                f"a row must have {len(self._rows[0].columns)} columns, not {len(row.columns)}"
            )
        self._rows.append(row)
        return row

    def get_string(
        self, first_column_width: int | None = None, second_column_width: int | None = None
    ) -> str:
        """The rows as text; the widths are the least of columns 0 and 2."""
        if not self._rows:
            return ""
        widths = [max(map(len, column)) for column in zip(*(row.columns for row in self._rows))]
        for column, least in ((0, first_column_width), (2, second_column_width)):
            if least and column < len(widths):
                widths[column] = max(widths[column], least)
        rows = sorted(self._rows, key=lambda row: row.columns[0]) if self._sortable else self._rows
        text = ""
        for row in rows:
            cells = [cell.ljust(width + 2) for cell, width in zip(row.columns, widths)]
            text += "".join(cells) + "\n"
            if row.details is not None:
                text += row.details.get_string(widths[0], widths[2] if len(widths) > 2 else None)
        return text
