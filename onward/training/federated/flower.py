"""Federated learning with Flower: a ClientApp, a ServerApp and their strategy, over artifacts.

    client_app = make_client_app(open_data)
    server_app = make_server_app()

Flower is imported when an app is made: pip install 'onward[federated]'.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from onward.errors import OptionError, PackageMissing
from onward.message_text import first_line, suggest_names
from onward.training.federated.averaging import ClientUpdate, average_metrics, average_updates
from onward.training.federated.local_training import LocalSettings, LocalTraining
from onward.training.federated.saved_rounds import SavedRounds, describe_round, rounds_of

Config = Mapping[str, Any]
StrPath = str | os.PathLike[str]

_ARRAYS, _CONFIG, _METRICS, _ROWS, _ROUND = (
    "arrays", "config", "metrics", "num-examples", "server-round",
)  # fmt: skip


def make_client_app(
    open_data: Callable[[Config], Any],
    *,
    artifacts: StrPath | None = None,
    metrics: Sequence[str] = (),
) -> Any:
    """A Flower ClientApp that trains and evaluates on the data of its node.

    `open_data` gets the settings of the run and of the node (`--node-config "partition-id=0"`) and
    returns the node's data. `artifacts` is a folder; None: the setting `artifacts` of run or node.
    How to train (epochs, batch size, ...) comes from the server with each message.
    """
    _check_flower()
    from flwr.app import Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Any, context: Any) -> Any:
        client, parameters, data = start(message, context)
        config = dict(message.content[_CONFIG])
        number = int(config.pop(_ROUND, 0))
        found = client.fit(parameters, data, LocalSettings(**config), round_number=number)
        record = {_ARRAYS: _pack(client.names, found.parameters)}
        record[_METRICS] = MetricRecord({_ROWS: found.rows, **found.metrics})
        return Message(content=RecordDict(record), reply_to=message)

    @app.evaluate()  # type: ignore[untyped-decorator, unused-ignore]
    def evaluate(message: Any, context: Any) -> Any:
        client, parameters, data = start(message, context)
        found = client.evaluate(parameters, data)
        record = {_METRICS: MetricRecord({_ROWS: found.rows, **found.metrics})}
        return Message(content=RecordDict(record), reply_to=message)

    def start(message: Any, context: Any) -> tuple[LocalTraining, list[Any], Any]:
        config = {**context.run_config, **context.node_config}
        client = LocalTraining(_setting(config, "artifacts", artifacts), metrics=metrics)
        return client, _unpack(client.names, message.content[_ARRAYS]), open_data(config)

    return app


def make_server_app(
    *,
    artifacts: StrPath | None = None,
    folder: StrPath | None = None,
    rounds: int | None = None,
    clients: int | None = None,
    share: float = 1.0,
    local: LocalSettings | None = None,
    open_held_out: Callable[[Config], Any] | None = None,
    evaluate_clients: bool = True,
    metrics: Sequence[str] = (),
    timeout: float = 3600.0,
) -> Any:
    """A Flower ServerApp that averages the clients' parameters and saves every round in a folder.

    `artifacts`, `folder`, `rounds` and `clients` (that must be connected) may be left out: the
    settings of the run have them then (`flwr run --run-config "rounds=5"`). Of the clients, `share`
    train in a round; those that do not reply within `timeout` seconds are left out. The averaged
    model is evaluated on the clients' data (`evaluate_clients`) and on the server's
    (`open_held_out`). Run again with the same folder, it continues after the last round.
    """
    _check_flower()
    from flwr.app import ConfigRecord
    from flwr.serverapp import ServerApp

    app = ServerApp()
    chosen = local or LocalSettings()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Any, context: Any) -> None:
        config = dict(context.run_config)
        saved = SavedRounds(_setting(config, "folder", folder))
        training = saved.open(_setting(config, "artifacts", artifacts), metrics=metrics)
        left = int(_setting(config, "rounds", rounds)) - len(rounds_of(training))
        if left <= 0:
            return
        strategy = make_strategy(
            training,
            saved,
            clients=int(_setting(config, "clients", clients)),
            share=share,
            evaluate_clients=evaluate_clients,
            held_out=None if open_held_out is None else open_held_out(config),
        )
        strategy.start(
            grid=grid,
            initial_arrays=_pack(training.names, training.parameters),
            num_rounds=left,
            timeout=timeout,
            train_config=ConfigRecord(chosen.given()),
        )

    return app


def make_strategy(
    training: LocalTraining,
    saved: SavedRounds | None,
    *,
    clients: int = 2,
    share: float = 1.0,
    evaluate_clients: bool = True,
    held_out: Any = None,
) -> Any:
    """A Flower strategy: FedAvg with exact sums, which leaves broken updates out and saves rounds.

    `training` holds the averaged parameters. Rounds are numbered on from those in its checkpoint.
    """
    _check_flower()
    from flwr.app import MetricRecord
    from flwr.serverapp.strategy import FedAvg

    first = len(rounds_of(training))

    class SavedFedAvg(FedAvg):  # type: ignore[misc, unused-ignore]
        """FedAvg over artifacts."""

        record: dict[str, Any]

        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            return super().configure_train(first + server_round, arrays, config, grid)

        def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> Any:
            updates, failures = [], {}
            for reply in replies:
                client = str(reply.metadata.src_node_id)
                try:
                    metrics = _metrics_of(reply)
                    arrays = _unpack(training.names, reply.content[_ARRAYS])
                    updates.append(ClientUpdate(client, arrays, int(metrics.pop(_ROWS)), metrics))
                except (KeyError, TypeError, ValueError) as error:
                    failures[client] = first_line(error)
            averaged = average_updates(updates, training.parameters, failures)
            training.set_parameters(averaged.parameters)
            self.record = describe_round(first + server_round, averaged)
            found = {_ROWS: averaged.rows, **averaged.metrics}
            return _pack(training.names, averaged.parameters), MetricRecord(found)

        def aggregate_evaluate(self, server_round: int, replies: Iterable[Any]) -> Any:
            found = []
            for reply in replies:
                try:
                    found.append(_metrics_of(reply))
                except (KeyError, TypeError, ValueError) as error:
                    self.record["left_out"][str(reply.metadata.src_node_id)] = first_line(error)
            rows = [int(each.pop(_ROWS, 0)) for each in found]
            numbers = average_metrics(found, rows) if sum(rows) else {}
            self.record |= {f"client_{name}": value for name, value in numbers.items()}
            if held_out is not None:
                measured = training.evaluate(training.parameters, held_out).metrics
                self.record |= {f"held_out_{name}": value for name, value in measured.items()}
            if saved is not None:
                saved.save(training, self.record)
            return MetricRecord(numbers)

    least = max(1, round(share * clients))
    return SavedFedAvg(
        fraction_train=share,
        min_train_nodes=least,
        fraction_evaluate=1.0 if evaluate_clients else 0.0,
        min_evaluate_nodes=clients,
        min_available_nodes=clients,
    )


def _check_flower() -> None:
    try:
        import flwr.app
    except ImportError as error:
        raise PackageMissing(
            f"Flower is not installed ({error})\ninstall it with: pip install 'onward[federated]'"
        ) from error
    del flwr


def _pack(names: Sequence[str], parameters: Sequence[Any]) -> Any:
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(array) for name, array in zip(names, parameters)})


def _unpack(names: Sequence[str], arrays: Any) -> list[Any]:
    """The arrays of a message in the order of the names."""
    found = {str(name): array.numpy() for name, array in arrays.items()}
    if found.keys() != set(names):
        different = min(found.keys() ^ set(names))
        raise ValueError(f"its parameters are of other artifacts: {different!r} is in one of them")
    return [found[name] for name in names]


def _metrics_of(reply: Any) -> dict[str, float]:
    if reply.has_error():
        raise ValueError(f"it failed: {reply.error.reason}")
    return {str(name): value for name, value in reply.content[_METRICS].items()}


def _setting(config: Config, name: str, given: Any) -> Any:
    """A setting that the program gave, or else the run."""
    value = config.get(name, "") if given is None else given
    if value == "":
        raise OptionError(
            f"the run has no setting {name!r}\n"
            f"give --run-config '{name}=...'; {suggest_names(name, config)}"
        )
    return value
