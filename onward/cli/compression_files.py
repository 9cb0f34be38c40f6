"""What the verbs of compression share: checks of their files, the printed report, its page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onward.cli.console import make_console, print_json
from onward.errors import OptionError
from onward.graph.paths import check_writable, writing

if TYPE_CHECKING:
    from onward.compress.report import Report


def check_files(model: Path, save: Path | None, page: Path | None) -> None:
    """Refuse files that cannot be written, or would replace the model, before the work."""
    for path in filter(None, (save, page)):
        if path.exists() and model.exists() and path.samefile(model):
            raise OptionError(f"{path} is the model itself\ngive another name: it is kept")
        check_writable(path)


def show_report(report: Report, page: Path | None, as_json: bool) -> None:
    """Print a report, and write its page."""
    if as_json:
        print_json(report.to_json())
    else:
        make_console().print(str(report), markup=False, soft_wrap=True)
    if page is not None:
        with writing(page):
            page.write_text(report.page(), "utf-8")
