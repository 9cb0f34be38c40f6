"""Checkpoints of a Trainer: folders checkpoint-N with the model, the session and the state."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import torch
from torch import nn

from onward.checkpoints import tensor_files
from onward.errors import CheckpointMissing
from onward.pytorch.torch_session import write_to_module
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
    """Write checkpoint-N of a run, and remove the oldest ones beyond the limit but the best.

    Without a session, a run cannot be resumed from it.
    """
    path = folder / f"checkpoint-{state.global_step}"
    best = folder / f"checkpoint-{state.best_global_step}"
    if state.best_global_step is not None and (best == path or best.is_dir()):
        state.best_model_checkpoint = str(best)
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
        remove_old(folder, limit, {path, Path(state.best_model_checkpoint or path)})
    return path


def remove_old(folder: Path, limit: int, kept: set[Path]) -> None:
    """Remove the oldest checkpoints until as many are left; `kept` are never removed."""
    found = list_checkpoints(folder)
    removable = [path for path in found if path not in kept]
    for path in removable[: max(len(found) - max(limit, len(kept)), 0)]:
        shutil.rmtree(path)


def load_weights(path: Path, model: nn.Module, session: TrainingSession) -> None:
    """Give a model and its session the weights of a checkpoint."""
    names = [*session.parameters, *session.statistics]
    if (path / _SESSION).is_file():
        tensors = tensor_files.read(path / _SESSION).tensors
        session.set_parameters({name: tensors[name] for name in names})
        write_to_module(session, model)
        return
    if hasattr(model, "save_pretrained"):
        weights = type(model).from_pretrained(path).state_dict()  # type: ignore[attr-defined]
    else:
        weights = torch.load(path / _WEIGHTS, weights_only=True)
    model.load_state_dict(weights)
    given = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    session.set_parameters({name: given[name].detach().cpu().numpy() for name in names})


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
            f"{path} has no {_SESSION}: it is not a checkpoint to resume from\n"
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
