"""WriteReport: figures and report.html, when a run ends."""

from __future__ import annotations

import math

from onward.runner.callback import Callback
from onward.runner.report.report_facts import ReportFacts
from onward.runner.report.write_report import write_report
from onward.runner.run import Run


class WriteReport(Callback):
    """Writes the report of the exported weights."""

    def on_end(self, run: Run) -> None:
        last = run.evaluations[-1] if run.evaluations else None
        shown = run.best if run.config.export == "best" and run.best is not None else last
        trained = sum(math.prod(each.shape) for each in run.session.program.layout.parameters)
        initializers = run.plan.adapted.model.graph.initializers.values()
        everything = sum(each.const_value.size for each in initializers if each.const_value)
        write_report(
            run.folder,
            ReportFacts(
                run.config.model_dump(),
                run.plan.choices,
                shown,
                run.plan.classes,
                trained,
                max(everything, trained),
                run.plan.sizes,
            ),
        )
