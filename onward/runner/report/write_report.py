"""Write what a run leaves behind: figures as files, and one page with all of it."""

from __future__ import annotations

from pathlib import Path

from onward.graph.paths import writing
from onward.runner.report.metrics_file import read_curves
from onward.runner.report.page_data import report_data
from onward.runner.report.page_template import fill_page
from onward.runner.report.report_facts import ReportFacts
from onward.runner.report.run_figures import write_figures
from onward.runner.run_folder import RunFolder


def write_report(folder: RunFolder, facts: ReportFacts) -> Path:
    """Write curves.png, confusion.png, roc.png and report.html; return the page's path.

    A figure is written where the run has numbers for it: as SVG where Pillow is missing, which a
    note on the page says. The page is one file: it works offline, and requests nothing.
    """
    columns = read_curves(folder)
    notes = write_figures(folder, columns, facts)
    page = fill_page("report_page.html", report_data(folder, columns, facts, notes))
    with writing(folder.report):
        folder.report.write_text(page, "utf-8")
    return folder.report
