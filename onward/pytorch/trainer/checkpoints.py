"""Checkpoints of a Trainer: folders checkpoint-N with the model, the session and the state."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import torch
from torch import nn

from onward.errors import CheckpointMissing
from onward.pytorch.trainer.trainer_state import TrainerState
from onward.sessions.training.session import TrainingSession

_NAME = re.compile(r"checkpoint-(\d+)")
_SESSION, _STATE, _WEIGHTS = "session.onward", "trainer_state.json", "pytorch_model.bin"


def write_checkpoint(
    folder: Path,
    model: nn.Module,
    session: TrainingSession | None,
    state: TrainerState,
    limit: int | None,
) -> Path:
    """Write checkpoint-N of a run, and remove the oldest ones beyond the limit.

    Without a session, a run cannot be resumed from it.
    """
    path = folder / f"checkpoint-{state.global_step}"
    part = folder / f"{path.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    write_model(part, model)
    if session is not None:
        session.save(part / _SESSION)
    state.write(part / _STATE)
    shutil.rmtree(path, ignore_errors=True)
    part.rename(path)  # complete, or not there
    if limit is not None and limit > 0:
        for old in list_checkpoints(folder)[:-limit]:
            shutil.rmtree(old)
    return path


def write_model(folder: Path, model: nn.Module) -> None:
    """Write a model: as transformers does where it is one of its models, else its state_dict."""
    folder.mkdir(parents=True, exist_ok=True)
    save = getattr(model, "save_pretrained", None)
    if save is not None:
        save(folder)
    else:
        torch.save(model.state_dict(), folder / _WEIGHTS)


def read_checkpoint(path: Path, session: TrainingSession) -> TrainerState:
    """Continue from a checkpoint: the session's tensors, and the state of the run."""
    if not (path / _SESSION).is_file():
        raise CheckpointMissing(
            f"{path} has no {_SESSION}: it is no checkpoint to resume from\n"
            "resume from one that onward.pytorch.Trainer wrote without save_only_model"
        )
    session.load(path / _SESSION)
    return TrainerState.read(path / _STATE)


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the oldest first."""
    found = [(int(match[1]), path) for path in folder.glob("checkpoint-*")
             if (match := _NAME.fullmatch(path.name))]  # fmt: skip
    return [path for _, path in sorted(found)]


def find_checkpoint(folder: Path, given: str | bool) -> Path:
    """The checkpoint to resume from: a path, or with True the newest of the folder."""
    if given is not True:
        return Path(str(given))
    found = list_checkpoints(folder)
    if not found:
        raise CheckpointMissing(f"{folder} has no checkpoint\ntrain from the start, or name one")
    return found[-1]
