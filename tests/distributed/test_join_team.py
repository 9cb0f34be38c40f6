"""Which team a process trains in: found from its launcher, or it is alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from onward.distributed.join_team import join_team
from onward.distributed.named_parallel import COMPRESSIONS, make_compression, read_parallel
from onward.distributed.parallel import Parallel
from onward.errors import OptionError
from onward.runner.config import TEAM_SETTINGS, TrainConfig, make_config
from onward.runner.share_plan import parallel_settings
from onward.runner.team import ALONE
from tests.distributed.group_of_processes import run_processes

DEFAULTS = make_config().model_dump(include=set(TEAM_SETTINGS))


def test_a_process_without_a_launcher_is_alone() -> None:
    assert join_team(DEFAULTS) is ALONE


def test_one_process_of_a_launcher_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert join_team(DEFAULTS) is ALONE


def test_shards_need_processes() -> None:
    with pytest.raises(OptionError, match="shard=2 needs as many processes, but there is one\nsta"):
        join_team({**DEFAULTS, "shard": 2})
    with pytest.raises(OptionError, match="logical_shards needs a launcher"):
        join_team({**DEFAULTS, "logical_shards": 4})
    with pytest.raises(OptionError, match="Parallel needs a launcher"):
        join_team(DEFAULTS, Parallel())


@pytest.mark.integration
def test_a_run_in_one_process_loads_no_torch() -> None:
    code = "import onward, sys; onward.train; from onward.distributed.join_team import join_team; "
    code += "join_team({}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_settings_are_those_of_parallel() -> None:
    assert read_parallel(DEFAULTS) == Parallel()
    for given in (
        Parallel(shard=2, zero=1, bucket=100, timeout=5.0, backend="gloo"),
        Parallel(logical_shards=4),
    ):
        settings = make_config(parallel_settings(given)).model_dump(include=set(TEAM_SETTINGS))
        assert read_parallel(settings) == given
    assert parallel_settings(Parallel()) == {}


def test_compressions_are_read_by_name() -> None:
    choices = str(TrainConfig.model_fields["compression"].annotation)
    assert all(repr(name) in choices for name in COMPRESSIONS)
    with pytest.raises(OptionError, match="no compression 'int9'\ndid you mean 'int8'"):
        make_compression("int9")


def describe(rank: int) -> tuple[object, ...]:
    team = join_team({**DEFAULTS, "bucket": 1000})
    found = team.gather(rank * 10), team.broadcast(f"of {rank}"), team.largest(rank)
    return team.rank, team.size, team.backend, team.parallel, team.bytes_sent > 0, *found


@pytest.mark.integration
def test_processes_of_a_group_are_a_team() -> None:
    parallel = Parallel(data=2, bucket=1000)
    for rank, found in enumerate(run_processes(describe, 2)):
        assert found == (rank, 2, "gloo", parallel, True, [0, 10], "of 0", 1)
