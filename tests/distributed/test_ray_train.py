"""Training on a real Ray cluster of two nodes: Ray Train, and a parameter server as an actor."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.distributed.parameter_server.ray_server import RayConnection, start_ray_server
from onward.distributed.parameter_server.server_settings import ServerSettings
from onward.distributed.parameter_server.server_worker import ParameterServerWorker
from onward.distributed.ray_train import RaySettings, RayWorker, train_on_ray
from onward.errors import OptionError
from tests.distributed.parameter_server.server_cases import make_program, open_session
from tests.sessions.training.small import batches

ray: Any = pytest.importorskip("ray")
pytest.importorskip("ray.train", exc_type=ImportError)  # it needs more than ray does
pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
GUARD = 300.0  # seconds, against a test that hangs
STEPS = 8
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings are Ray's own


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs, and two nodes with one each; a lost one is noticed in 3 seconds."""
    from ray.cluster_utils import Cluster

    checks = {"health_check_period_ms": 500, "health_check_failure_threshold": 6}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": checks}
    started = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        started.add_node(num_cpus=1)
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_TRAIN_V2_ENABLED": "1"}
    ray.init(
        address=started.address, runtime_env={"env_vars": variables}, log_to_driver=False,
        configure_logging=False,
    )  # fmt: skip
    yield started
    ray.shutdown()
    started.shutdown()


def train(worker: RayWorker, config: dict[str, Any]) -> None:
    """Data parallel by a gradient hook; the first time, rank 1 stops in the middle."""
    import torch
    from torch import distributed as dist

    session = open_session(make_program(onward.optimizers.AdamW(lr=0.01)))

    def average(buffers: list[Any]) -> None:
        for buffer in buffers:
            tensor = torch.from_numpy(buffer)
            dist.all_reduce(tensor)
            tensor /= worker.size

    session.add_gradient_hook(average)
    assert worker.restore(session) == worker.is_resumed
    begun, stuck = session.steps, Path(config["stuck"])
    data = batches(STEPS, seed=worker.rank)
    while session.steps < STEPS:
        if worker.rank == 1 and session.steps == STEPS // 2 and not stuck.exists():
            stuck.with_suffix(".part").write_text(ray.get_runtime_context().get_node_id())
            stuck.with_suffix(".part").rename(stuck)
            threading.Event().wait(GUARD)
        loss = session.step(data[session.steps])["loss"]
        worker.report({"loss": float(loss), "steps": session.steps, "begun": begun}, session)


def test_a_run_survives_the_loss_of_a_node(cluster: Any, tmp_path: Path) -> None:
    """Its weights are those of one process that trained on the same batches without a break."""
    stuck = tmp_path / "stuck"
    settings = RaySettings(workers=2, storage=tmp_path / "runs", name="mlp", timeout=60)
    with ThreadPoolExecutor(1) as pool:  # nodes are started in the main thread
        running = pool.submit(train_on_ray, train, settings, {"stuck": str(stuck)})
        end = time.monotonic() + GUARD
        while not stuck.exists() and not running.done() and time.monotonic() < end:
            wait([running], 0.1)
        assert stuck.exists(), running
        (lost,) = (n for n in cluster.list_all_nodes() if n.node_id == stuck.read_text())
        cluster.remove_node(lost, allow_graceful=False)
        cluster.add_node(num_cpus=1)
        result = running.result(GUARD)
    assert result.metrics["steps"] == STEPS
    assert 1 <= result.metrics["begun"] <= STEPS // 2  # the last report may be lost with the node
    program = make_program(onward.optimizers.AdamW(lr=0.01))
    restored, alone = open_session(program), open_session(program)
    with result.checkpoint.as_directory() as folder:
        restored.load(Path(folder, "session.safetensors"))
    for micro in zip(*(batches(STEPS, seed=rank) for rank in range(2))):
        for feeds in micro:
            alone.run_forward(feeds)
            alone.run_backward()
        alone.update_weights()
    assert restored.steps == alone.steps == STEPS
    for name, tensor in alone.parameters.items():
        np.testing.assert_allclose(restored.parameters[name], tensor, rtol=0, atol=1e-6)


def test_a_parameter_server_is_an_actor(cluster: Any, tmp_path: Path) -> None:
    """Two tasks train against it; the actor is killed, and goes on from its checkpoint."""
    resources = {"num_cpus": 0}
    settings = ServerSettings(staleness=2)
    server = start_ray_server(open_session, settings, folder=tmp_path, every=1, resources=resources)

    @ray.remote(num_cpus=1)
    def work(seed: int) -> dict[str, int]:
        worker = ParameterServerWorker(open_session(), RayConnection(server))
        return worker.train(batches(20, seed=seed))

    before = ray.get(server.status.remote(), timeout=GUARD)["version"]
    counts = ray.get([work.remote(seed) for seed in range(2)], timeout=GUARD)
    assert before == 0 and [sum(each.values()) for each in counts] == [20, 20]
    first = ray.get(server.status.remote(), timeout=GUARD)
    assert first["version"] == 40 and max(first["staleness"]) <= 2
    weights = ray.get(server.parameters.remote(), timeout=GUARD)
    ray.kill(server, no_restart=False)
    assert ray.get(work.remote(7), timeout=GUARD)["applied"] == 20
    again = ray.get(server.status.remote(), timeout=GUARD)
    assert again["version"] == 60
    assert not np.array_equal(ray.get(server.parameters.remote())["w1"], weights["w1"])
    ray.kill(server)


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="workers must be a whole number, at least 1"):
        RaySettings(workers=0, storage=tmp_path, name="a")
    with pytest.raises(OptionError, match="train_on_ray needs settings"):
        train_on_ray(train, {"workers": 2})  # type: ignore[arg-type]
