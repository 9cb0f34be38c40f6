"""RunFolder: the files of one run, and the folder of all runs.

runs/NAME/
  config.toml       every setting that is not the default
  command.txt       the exact command that repeats the run
  run.json          its state: started, finished, numbers, versions, machine
  metrics.csv       a line for every few steps and for every evaluation
  checkpoints/      the newest ones and the best one
  model.onnx        the exported model, with its preprocessing
  adapter.safetensors   the adapters, with --keep-adapter
  curves.png, confusion.png, roc.png
  report.html       all of it on one page
  tensorboard/      events, with --tensorboard
  profile/          with --profile
  current.onnx, watch/   with --watch: the best model so far, and the journal of decisions
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.errors import FileExists, OptionError
from onward.graph.paths import make_folder, writing
from onward.message_text import suggest_names

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]*")


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run's files.

    >>> RunFolder(Path("runs/cnn-1")).metrics.as_posix()
    'runs/cnn-1/metrics.csv'
    """

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def command(self) -> Path:
        return self.path / "command.txt"

    @property
    def record(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        return self.path / "model.onnx"

    @property
    def adapter(self) -> Path:
        return self.path / "adapter.safetensors"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def profile(self) -> Path:
        return self.path / "profile" / "profile.html"

    def read_record(self) -> dict[str, Any]:
        """The contents of run.json; empty if there is none or it was cut off."""
        try:
            found = json.loads(self.record.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_record(self, **changes: Any) -> None:
        """Change entries of run.json; the file is replaced as a whole."""
        content = json.dumps({**self.read_record(), **changes}, indent=1)
        new = self.record.with_suffix(".json.new")
        with writing(self.record):
            new.write_text(content)
            new.replace(self.record)

    def remove(self) -> None:
        """Remove the folder of a run that made no step."""
        shutil.rmtree(self.path, ignore_errors=True)


def new_run_folder(runs: Path, name: str | None, stem: str) -> RunFolder:
    """Make the folder of a new run: `name`, or the model's stem with the next free number."""
    if name is not None and not _NAME.fullmatch(name):
        raise OptionError(
            f"a run cannot be called {name!r}\nuse letters, digits, dots, dashes and underscores"
        )
    if name is not None and (runs / name).exists() and not _is_abandoned(runs / name):
        raise FileExists(f"{runs / name} exists\ncontinue it with --resume, or give another --name")
    if name is None:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "run"
        number = 1
        while (runs / f"{stem}-{number}").exists():
            number += 1
        name = f"{stem}-{number}"
    make_folder(runs / name)
    return RunFolder(runs / name)


def _is_abandoned(folder: Path) -> bool:
    """Whether a run was killed while it wrote its first files: there is nothing to resume."""
    if not folder.is_dir():
        return False
    run = RunFolder(folder)
    first = {run.config.name, run.command.name, f"{run.record.name}.new"}
    return {each.name for each in folder.iterdir()} <= first


def find_run(runs: Path, name: str) -> RunFolder:
    """The folder of a run that exists, by its name or its path."""
    for folder in (runs / name, Path(name)):
        if (folder / "run.json").is_file():
            return RunFolder(folder)
    names = [each.name for each in list_runs(runs)]
    raise OptionError(f"there is no run {name!r} in {runs}\n{suggest_names(name, names)}")


def list_runs(runs: Path) -> Iterator[RunFolder]:
    """The runs of a folder, the oldest first."""
    found = [RunFolder(each.parent) for each in runs.glob("*/run.json")]
    yield from sorted(found, key=lambda run: (_started(run.read_record()), run.name))


def _started(record: Mapping[str, Any]) -> str:
    return str(record.get("started", ""))
