"""Run the apps on this machine: artifacts, a SuperLink, three SuperNodes, and `flwr run`.

python examples/flower/run_here.py FOLDER [ROUNDS]

FOLDER/federated has the averaged model afterwards. Run again with more rounds, it continues.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from digits_app import LOCAL, TEST, load_digits, open_digits

from onward import OpBuilder
from onward.training.artifacts import LossType, OptimType, generate_artifacts
from onward.training.federated.local_training import LocalSettings, LocalTraining
from onward.training.federated.saved_rounds import SavedRounds, rounds_of
from onward.training.federated.simulation import simulate

HERE, NODES, PATIENCE = Path(__file__).parent, 3, 900  # seconds


def main() -> None:
    folder, rounds = Path(sys.argv[1]).absolute(), int((sys.argv[2:] or ["5"])[0])
    artifacts, saved = folder / "artifacts", SavedRounds(folder / "federated")
    if not artifacts.exists():
        make_artifacts(artifacts)
    ports = free_ports(NODES + 1)
    environment = {**os.environ, "FLWR_HOME": str(folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    config = folder / "flwr" / "config.toml"
    config.parent.mkdir(exist_ok=True)
    config.write_text(f'[superlink.here]\naddress = "127.0.0.1:{ports[0]}"\ninsecure = true\n')
    link = ["flower-superlink", "--insecure", "--disable-runtime-dependency-installation"]
    commands = [[*link, "--host", "127.0.0.1", "--port", str(ports[0])]]
    for number in range(NODES):
        node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{ports[0]}"]
        port = str(ports[number + 1])
        commands.append([*node, "--port", port, "--node-config", f"partition-id={number}"])
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            log = stack.enter_context(open(folder / f"process-{number}.log", "wb"))
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        wait_for_port(ports[0])
        settings = f'artifacts="{artifacts}" folder="{saved.folder}" rounds={rounds}'
        command = ["flwr", "run", str(HERE), "here", "--run-config", settings]
        subprocess.run(command, env=environment, check=True, timeout=PATIENCE)
        wait_for_rounds(saved, artifacts, rounds)
    report(artifacts, saved)


def make_artifacts(folder: Path) -> None:
    """A classifier of two linear layers, and its training graphs."""
    rng = np.random.default_rng(0)
    op = OpBuilder(opset=18)
    x = op.input("pixels", "float32", ("batch", 64))
    w1 = op.initializer("fc1.weight", rng.normal(0, 0.18, size=(64, 32)).astype(np.float32))
    b1 = op.initializer("fc1.bias", np.zeros(32, np.float32))
    w2 = op.initializer("fc2.weight", rng.normal(0, 0.25, size=(32, 10)).astype(np.float32))
    b2 = op.initializer("fc2.bias", np.zeros(10, np.float32))
    generate_artifacts(
        op.model(scores=op.Gemm(op.Relu(op.Gemm(x, w1, b1)), w2, b2)),
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.SGD,
        additional_output_names=["scores"],
        artifact_directory=folder,
    )


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise SystemExit("the SuperLink did not start: see process-0.log")


def wait_for_rounds(saved: SavedRounds, artifacts: Path, rounds: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if saved.log.exists() and len(saved.log.read_text("utf-8").splitlines()) >= rounds:
            return
        time.sleep(0.5)
    raise SystemExit("the rounds did not end in time: see the logs of the processes")


def report(artifacts: Path, saved: SavedRounds) -> None:
    """The accuracy after each round; the same in one process; training on all data in one place."""
    training = saved.open(artifacts, metrics=["accuracy"])
    for record in rounds_of(training):
        count, right = len(record["clients"]), record["held_out_accuracy"]
        print(f"round {record['round']}: {count} clients, {right:.1%} of the test digits right")
    clients = [open_digits({"partition-id": number}) for number in range(NODES)]
    same = simulate(artifacts, clients, rounds=len(rounds_of(training)), local=LOCAL)
    equal = all(np.array_equal(a, b) for a, b in zip(same.parameters, training.parameters))
    print(f"in one process, without Flower: {'the same' if equal else 'other'} parameters")
    central = LocalTraining(artifacts, metrics=["accuracy"])
    data = load_digits()
    rest = {name: array[TEST:] for name, array in data.items()}
    test = {name: array[:TEST] for name, array in data.items()}
    epochs = LOCAL.epochs * len(rounds_of(training))
    local = LocalSettings(epochs=epochs, learning_rate=LOCAL.learning_rate)
    found: Mapping[str, float] = central.evaluate(
        central.fit(central.parameters, rest, local).parameters, test
    ).metrics
    print(f"all data in one place: {found['accuracy']:.1%}")


if __name__ == "__main__":
    main()
