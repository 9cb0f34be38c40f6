"""Find the run that the same settings started before."""

from __future__ import annotations

from pathlib import Path

from onward.errors import OnwardError, OptionError
from onward.runner.config import TrainConfig, make_config
from onward.runner.config_files import read_config
from onward.runner.run_folder import RunFolder, list_runs


def find_same_run(runs: Path, config: TrainConfig) -> RunFolder:
    """The newest run with these settings; OptionError if there is none."""
    wanted = config.model_copy(update={"name": None})
    for folder in reversed(list(list_runs(runs))):
        try:
            found = make_config(read_config(folder.config))
        except OnwardError:
            continue  # of another version, or damaged: not this one
        if found.model_copy(update={"name": None}) == wanted:
            return folder
    raise OptionError(
        f"no run in {runs} has the same settings, so there is none to resume\n"
        "start it without --resume, or name the run: --name"
    )
