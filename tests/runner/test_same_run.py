"""Runs that the same settings started before, to be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onward.errors import OptionError
from onward.runner.config import TrainConfig, make_config
from onward.runner.config_files import config_to_toml
from onward.runner.run_folder import RunFolder
from onward.runner.run_process import this_process
from onward.runner.same_run import find_run_of_launch, find_same_run


def write_run(runs: Path, name: str, config: TrainConfig, **record: Any) -> RunFolder:
    folder = RunFolder(runs / name)
    folder.path.mkdir(parents=True)
    folder.config.write_text(config_to_toml(config))
    folder.write_record(started=name, **record)
    return folder


def test_the_newest_run_with_the_same_settings_is_found(tmp_path: Path) -> None:
    config = make_config(epochs=5)
    write_run(tmp_path, "a", config)
    expected = write_run(tmp_path, "b", config)
    write_run(tmp_path, "c", make_config(epochs=6))
    assert find_same_run(tmp_path, config) == expected
    assert find_same_run(tmp_path, make_config(epochs=7, threads=1)).name == "c"  # made longer
    message = r"the same settings.*\n.*the run: --name \(c differs in 'batch_size', 'seed'\)"
    with pytest.raises(OptionError, match=message):
        find_same_run(tmp_path, make_config(epochs=5, seed=1, batch_size=8))


def test_processes_that_start_again_find_their_own_run(tmp_path: Path) -> None:
    config = make_config(epochs=5)
    write_run(tmp_path, "a", config, launch="job", status="finished")
    write_run(tmp_path, "b", config, launch="job", status="interrupted")
    expected = write_run(tmp_path, "c", config, launch="job", status="failed")
    write_run(tmp_path, "d", config, launch="other", status="running")
    write_run(tmp_path, "e", make_config(epochs=6), launch="job", status="running")
    assert find_run_of_launch(tmp_path, config, "job", 0) == expected
    assert find_run_of_launch(tmp_path, config, "new", 0) is None
    terminated = write_run(
        tmp_path, "f", config, launch="job", status="interrupted", terminated=True
    )  # by the launcher, because a machine joined
    assert find_run_of_launch(tmp_path, config, "job", 0) == terminated
    named = config.model_copy(update={"name": "z"})
    assert find_run_of_launch(tmp_path, named, "job", 1) is None


def test_a_process_that_fails_after_the_run_finds_it_complete(tmp_path: Path) -> None:
    config = make_config(epochs=5)
    complete = write_run(tmp_path, "a", config, launch="job", status="finished")
    assert find_run_of_launch(tmp_path, config, "job", 1) == complete
    assert find_run_of_launch(tmp_path, config, "job", 0) is None  # it is asked for a new run
    write_run(tmp_path, "b", config, status="finished")
    assert find_run_of_launch(tmp_path, config, None, 1) is None  # of which job, is not known


def test_a_launcher_without_a_name_counts_its_starts(tmp_path: Path) -> None:
    config = make_config(epochs=5)
    died = write_run(tmp_path, "a", config, status="running", host="elsewhere", pid=1)
    assert find_run_of_launch(tmp_path, config, None, 0) is None
    assert find_run_of_launch(tmp_path, config, None, 1) == died
    write_run(tmp_path, "b", config, status="running", **(this_process() | {"pid": 1}))
    assert find_run_of_launch(tmp_path, config, None, 1) == died  # process 1 trains b
