"""The torchrun command of each host, and of what it runs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from onward.distributed.launchers.host_commands import Machines, host_commands, read_nodes
from onward.distributed.launchers.launched_command import LaunchedCommand, read_command
from onward.distributed.launchers.rendezvous import (
    RendezvousTimes,
    hosts_store,
    own_address,
    read_endpoint,
)
from onward.errors import FileMissing, OnwardError, OptionError

TRAIN = read_command(["train", "m.onnx", "--note", "$5 a"])


@pytest.fixture
def torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """torchrun's own parser: what it makes of a command."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where it makes folders of logs
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which it would set
    return pytest.importorskip("torch.distributed.run")


def parse(torchrun: Any, command: list[str]) -> tuple[Any, str, list[str]]:
    """The settings, the program and its arguments that torchrun takes from a command."""
    words = command[command.index("torchrun") + 1 :]
    config, program, arguments = torchrun.config_from_args(torchrun.parse_args(words))
    macros = torchrun.macros
    return config, program, macros.substitute(arguments, "1")


def test_one_machine(torchrun: Any) -> None:
    [(host, command)] = host_commands(TRAIN, Machines(nproc=2, max_restarts=3)).items()
    assert host == "localhost" and command[:2] == ["torchrun", "--standalone"]
    config, program, arguments = parse(torchrun, command)
    assert (config.nproc_per_node, config.max_restarts) == (2, 3)
    assert [program, *arguments] == [sys.executable, "-u", "-m", "onward", *TRAIN.words[1:]]


def test_each_host_gets_its_own_command(torchrun: Any) -> None:
    machines = Machines(nproc=4, hosts=["me@node1", "node2"], max_restarts=1)
    commands = host_commands(read_command(["a.py", "--x"], elsewhere=True), machines)
    assert list(commands) == ["me@node1", "node2"]
    parsed = [parse(torchrun, command) for command in commands.values()]
    for config, _, arguments in parsed:
        assert config.rdzv_endpoint == "node1:29400" and config.rdzv_backend == "c10d"
        assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (2, 2, 4)
        assert arguments == ["-u", "a.py", "--x"]
        assert config.rdzv_configs["keep_alive_max_attempt"] == "10"
    assert [config.local_addr for config, *_ in parsed] == ["node1", "node2"]
    assert [config.rdzv_configs["is_host"] for config, *_ in parsed] == ["true", "false"]
    assert len({config.run_id for config, *_ in parsed}) == 1
    assert all("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in command for command in commands.values())


def test_elastic_machines_without_hosts_meet_by_the_same_name(torchrun: Any) -> None:
    machines = Machines(nodes=(1, 4), rendezvous="node1:5000")
    [command] = host_commands(TRAIN, machines).values()
    config, _, _ = parse(torchrun, command)
    assert (config.min_nodes, config.max_nodes, config.run_id) == (1, 4, "node1:5000")
    assert "is_host" not in config.rdzv_configs


@pytest.mark.parametrize(
    ("machines", "message"),
    [
        (Machines(hosts=["a", "a"]), "a host is given twice"),
        (Machines(hosts=["a", "b"], nodes=(3, 4)), "--nodes 3:4 does not fit 2 hosts"),
        (Machines(hosts=["a", "b"], rendezvous="c:1"), "--rdzv c is not one of the hosts a, b"),
        (Machines(nodes=(2, 2)), "several machines need an address where they meet"),
    ],
)
def test_machines_that_do_not_fit(machines: Machines, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        host_commands(TRAIN, machines)


@pytest.mark.parametrize("text", ["", "0", "2:1", "a", "1:", "1:2:3", "-1", "²"])
def test_invalid_numbers_of_machines(text: str) -> None:
    with pytest.raises(OptionError, match="--nodes takes N or MIN:MAX"):
        read_nodes(text)


@pytest.mark.parametrize("text", ["", ":5", "a:", "a:b", "a:70000", "::1", "a:-1"])
def test_invalid_endpoints(text: str) -> None:
    with pytest.raises(OptionError, match="is not HOST:PORT"):
        read_endpoint(text)


def test_this_machine_is_found_by_its_addresses() -> None:
    assert own_address("127.0.0.1", 29400) == "127.0.0.1"
    assert hosts_store("127.0.0.1", 0) and not hosts_store("192.0.2.1", 29400)
    with pytest.raises(OptionError, match=r"cannot reach no-such-host\.invalid"):
        own_address("no-such-host.invalid", 1)


def test_times_are_checked() -> None:
    with pytest.raises(OptionError, match="keep_alive must be a whole number, at least 1"):
        RendezvousTimes(keep_alive=0)
    times = RendezvousTimes(keep_alive=2, attempts=3, last_call=0, store=4, join=5)
    assert list(times.to_torch().values()) == [2, 3, 0, 4, 5]


def test_commands(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.touch()
    assert read_command([str(script), "-m"]).here() == [sys.executable, "-u", str(script), "-m"]
    assert read_command(["p.q", "a"], module=True).here()[1:] == ["-u", "-m", "p.q", "a"]
    assert read_command(["env", "a=$b"]).for_torchrun() == ["--no-python", "env", "a=$$b"]
    for words in (["train", "m"], ["x.py"], ["env", "-i"]):
        assert read_command(words, elsewhere=True).as_given() == words
    assert LaunchedCommand("module", ("onward", "demo")).as_given() == ["-m", "onward", "demo"]


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ([], OptionError, "there is no command to launch"),
        (["none.py"], FileMissing, "no script at none.py"),
        (["no-such-program"], OptionError, "is not a script, a program, or train"),
    ],
)
def test_commands_that_do_not_exist(
    words: list[str], error: type[OnwardError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_command(words)
