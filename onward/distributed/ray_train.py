"""Train on a Ray cluster with Ray Train: a function runs in several workers, failures included.

    def train(worker, config):
        session = onward.TrainingSession(..., parallel=Parallel())
        worker.restore(session)
        while session.steps < config["steps"]:
            loss = session.step(next_batch(worker.rank, session.steps))["loss"]
            worker.report({"loss": float(loss)}, session)

    result = train_on_ray(train, RaySettings(workers=2, storage="/shared/runs"), {"steps": 100})

Ray places the workers, joins them in a group of torch.distributed, starts all of them again when
one is lost, and keeps the checkpoints. It is imported when a run starts: pip install 'ray[train]'.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.checkpoints import tensor_files
from onward.errors import OptionError, PackageMissing
from onward.runner.callback import Callback
from onward.runner.events import Evaluation
from onward.runner.run import Run
from onward.sessions.training.session import TrainingSession
from onward.settings import (
    a_function,
    check_fields,
    explain_frozen,
    explain_keywords,
    integer,
    nonempty_name,
    number,
    optional,
    path_text,
)

_FILE = "session.safetensors"  # the checkpoint of a session, in a folder that Ray keeps


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Where and how Ray runs the workers of a training run.

    Attributes:
        workers: how many
        storage: the folder of checkpoints and results, which all machines of the cluster share
        name: of the run, in `storage`: the same name again continues a run that was interrupted
        cpus: cores for each worker
        gpus: GPUs for each worker
        max_failures: how often the run is started again after a worker or a machine was lost
        keep: the newest checkpoints that are kept; None: all
        backend: of torch.distributed; None: nccl with GPUs, gloo without
        timeout: seconds after which a worker that does not answer counts as lost

    >>> RaySettings(workers=4, storage="/shared/runs", name="cnn").max_failures
    3
    """

    storage: str | os.PathLike[str]
    name: str
    workers: int = 2
    cpus: float = 1.0
    gpus: float = 0.0
    max_failures: int = 3
    keep: int | None = 2
    backend: str | None = None
    timeout: float = 600.0

    def __post_init__(self) -> None:
        check_fields(
            self,
            storage=path_text,
            name=nonempty_name,
            workers=integer(1),
            cpus=number(),
            gpus=number(),
            max_failures=integer(0),
            keep=optional(integer(1)),
            backend=optional(nonempty_name),
            timeout=number(1.0),
        )


class RayWorker:
    """A worker of a run on Ray: its rank, the checkpoint that it starts from, its reports."""

    def __init__(self, train: Any, rank: int, size: int) -> None:
        self._train, self.rank, self.size = train, rank, size

    @property
    def is_resumed(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return self._train.get_checkpoint() is not None

    def restore(self, session: TrainingSession) -> bool:
        """Continue from the last reported checkpoint; whether there was one."""
        found = self._train.get_checkpoint()
        if found is None:
            return False
        with found.as_directory() as folder:
            session.load(Path(folder, _FILE))
        return True

    def report(self, metrics: Mapping[str, Any], session: TrainingSession | None = None) -> None:
        """Report metrics, and a checkpoint of the session if given; every worker must call it.

        The first worker writes the checkpoint. It is complete in `storage` when this returns, and
        damage is found when it is read.
        """
        if session is None:
            self._train.report(dict(metrics))
            return
        tensors, properties = session.checkpoint()  # of all workers: some of it may be elsewhere
        if self.rank != 0:
            self._train.report(dict(metrics))
            return
        with tempfile.TemporaryDirectory() as folder:
            tensor_files.write(Path(folder, _FILE), tensors, properties, step=session.steps)
            checkpoint = self._train.Checkpoint.from_directory(folder)
            self._train.report(dict(metrics), checkpoint=checkpoint)


class RayReports(Callback):
    """A callback of `onward.train` that reports each evaluation to Ray, with a checkpoint.

    def train(worker, config):
        onward.train("model.onnx", "data.npz", callbacks=[RayReports(worker)], name="run",
                     runs="/shared/runs", resume=worker.is_resumed)
    """

    def __init__(self, worker: RayWorker) -> None:
        self._worker = worker

    def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        metrics = {"step": evaluation.step, "epoch": evaluation.epoch, **evaluation.numbers}
        self._worker.report(metrics, run.session)


def train_on_ray(
    function: Callable[[RayWorker, dict[str, Any]], Any],
    settings: RaySettings,
    config: Mapping[str, Any] | None = None,
) -> Any:
    """Run `function(worker, config)` in the workers of a Ray cluster, and return Ray's result.

    Its `metrics` are the last ones that the first worker reported, its `checkpoint` the last one.
    Ray is connected to as `ray.init()` does, unless it already is. The function is pickled: it must
    not refer to sessions or open files. A run that failed too often raises Ray's error.
    """
    train, torch = _import_ray_train()
    a_function("train_on_ray: function", function)
    if not isinstance(settings, RaySettings):
        raise OptionError(
            f"train_on_ray needs settings, not {settings!r}\n"
            "such as RaySettings(workers=2, storage='/shared/runs', name='cnn')"
        )
    resources = {"CPU": settings.cpus} | ({"GPU": settings.gpus} if settings.gpus else {})
    trainer = torch.TorchTrainer(
        _Task(function),
        train_loop_config=dict(config or {}),
        torch_config=torch.TorchConfig(backend=settings.backend, timeout_s=int(settings.timeout)),
        scaling_config=train.ScalingConfig(
            num_workers=settings.workers,
            use_gpu=settings.gpus > 0,
            resources_per_worker=resources,
        ),
        run_config=train.RunConfig(
            name=settings.name,
            storage_path=os.path.abspath(settings.storage),
            failure_config=train.FailureConfig(max_failures=settings.max_failures),
            checkpoint_config=train.CheckpointConfig(num_to_keep=settings.keep),
        ),
    )
    return trainer.fit()


class _Task:
    """The function of a worker, as Ray calls it."""

    def __init__(self, function: Callable[[RayWorker, dict[str, Any]], Any]) -> None:
        self._function = function

    def __call__(self, config: dict[str, Any]) -> None:
        train, _ = _import_ray_train()
        context = train.get_context()
        worker = RayWorker(train, context.get_world_rank(), context.get_world_size())
        self._function(worker, config)


def _import_ray_train() -> tuple[Any, Any]:
    try:
        from ray import train
        from ray.train import torch
    except ImportError as error:
        raise PackageMissing(
            f"Ray Train is not installed ({error})\ninstall it with: pip install 'ray[train]'"
        ) from error
    return train, torch
