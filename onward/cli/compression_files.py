"""What the verbs of compression share: checks of files, the report, its page, the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from onward.cli.console import make_console, print_json
from onward.errors import OptionError
from onward.graph.paths import check_writable, writing

if TYPE_CHECKING:
    from onward.compress.report import Report

DID_NOT_HELP = 1  # exit code


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


def finish(
    report: Report, save: Path | None, page: Path | None, force: bool, as_json: bool
) -> None:
    """Print a report and write its files; exit code 1 if it did not help and nothing was forced.

    Args:
        force: save the best model that was found even if it did not help
    """
    show_report(report, page, as_json)
    is_forced = force and not report.helped and report.rejected is not None
    if save is not None:
        if report.helped or is_forced:
            report.save(save, force=force)
        make_console(stderr=as_json).print(_outcome(report, save, is_forced), soft_wrap=True)
    if not report.helped and not (save is not None and is_forced):
        raise typer.Exit(DID_NOT_HELP)


def _outcome(report: Report, save: Path, is_forced: bool) -> str:
    """What became of the file, in one line."""
    if report.helped:
        return f"saved {save}"
    if is_forced:
        return f"saved {save}, although it does not meet what was asked for (--force)"
    if report.rejected is None:
        return f"{save} was not written: no other model than the original was found"
    return f"{save} was not written; --force saves the best one found"
