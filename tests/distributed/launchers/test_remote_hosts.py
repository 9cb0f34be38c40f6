"""Commands on several hosts: their output, and that they end together."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onward.distributed.launchers.remote_hosts import run_on_hosts, ssh_commands

ROOT = Path(__file__).parents[3]
SHELL = (sys.executable, str(Path(__file__).with_name("local_shell.py")))
# a terminal may drop what is printed right after Ctrl-C, so that a file tells of it
PROGRAM = """
import os, pathlib, signal
def save(number, frame):
    pathlib.Path("saved-" + os.environ["HOST"]).touch()
    os._exit(3)
signal.signal(signal.SIGINT, save)
print("ready", flush=True)
while True:
    signal.pause()
"""
WAITING = [sys.executable, "-c", PROGRAM]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it needs terminals of Unix")


def test_output_is_shown_with_the_host_it_is_from(tmp_path: Path) -> None:
    shown: list[str] = []
    command = ["bash", "-c", 'echo "$HOST $PWD $0"', "it's"]
    folder = tmp_path / "a b"
    folder.mkdir()
    code = run_on_hosts(
        {"a": command, "b": command},
        folder=str(folder),
        fewest=2,
        shell=SHELL,
        show=shown.append,
    )
    assert code == 0
    assert sorted(shown) == [f"[{host}] {host} {folder} it's" for host in "ab"]


@pytest.mark.parametrize(
    ("failing", "code"), [(["bash", "-c", "exit 5"], 5), (["no-such-command"], 127)]
)
def test_the_others_are_interrupted_when_too_few_are_left(
    failing: list[str], code: int, tmp_path: Path
) -> None:
    shown: list[str] = []
    commands = {"a": WAITING, "b": failing}
    found = run_on_hosts(
        commands, folder=str(tmp_path), fewest=2, shell=SHELL, show=shown.append, grace=4.0
    )
    assert found == code
    assert f"error: b ended with exit code {code}" in shown


def test_enough_hosts_go_on_without_one() -> None:
    shown: list[str] = []
    commands = {"a": ["echo", "done"], "unreachable": ["true"]}
    code = run_on_hosts(commands, folder="/", fewest=1, shell=SHELL, show=shown.append)
    assert code == 255 and "[a] done" in shown
    assert "[unreachable] ssh: connect to host unreachable: No route to host" in shown


def test_ctrl_c_reaches_every_host(tmp_path: Path) -> None:
    program = f"""
from onward.distributed.launchers.remote_hosts import run_on_hosts
commands = dict.fromkeys(("a", "b"), {WAITING!r})
code = run_on_hosts(commands, folder={str(tmp_path)!r}, fewest=2, shell={SHELL!r},
                    show=lambda line: print(line, flush=True))
print("code", code)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline() for _ in "ab") == ["[a] ready\n", "[b] ready\n"]
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 0
    assert rest.endswith("code 130\n")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["saved-a", "saved-b"]


def test_the_ssh_command_is_quoted() -> None:
    [command] = ssh_commands({"node1": ["echo", "a b", "$x"]}, "/it's").values()
    assert command[:2] == ["ssh", "-tt"] and command[-2] == "node1"
    assert command[-1] == """cd '/it'"'"'s' && exec echo 'a b' '$x'"""
