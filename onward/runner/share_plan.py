"""Share a plan among processes: each trains on its part of every batch of the same plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onward.errors import DataError, OptionError
from onward.runner.config import TEAM_SETTINGS, TrainConfig
from onward.runner.data.batch_part import BatchPart
from onward.runner.plan.training_plan import TrainingPlan
from onward.runner.team import Team, run_on_all


def share_plan(plan: TrainingPlan, team: Team) -> TrainingPlan:
    """The plan for one process of a team; all of them must have made the same one."""
    if team.parallel is None:
        return plan
    facts = team.gather(_facts(plan))
    run_on_all(team, lambda: _check_same(facts, team.rank))
    if plan.training.drop_last and team.size > 1:
        raise OptionError(
            f"the model was exported with a batch of {plan.training.size} rows, and {team.size} "
            "processes take a part of every batch\n"
            "export it with a dynamic batch, or train it in one process"
        )
    part = BatchPart(team.rank, team.size, team.parallel.logical_shards)
    return replace(plan, training=plan.training.part_of(part))


def parallel_settings(parallel: Any) -> dict[str, Any]:
    """The settings of TrainConfig that a Parallel has, which config.toml keeps.

    A compression and local steps are values with settings of their own: they are left out.
    """
    names = {"timeout": "peer_timeout"}
    found = {names.get(name, name): value for name, value in vars(parallel).items()}
    kept = [name for name in TEAM_SETTINGS if name not in ("compression", "local_steps")]
    known = TrainConfig.model_fields
    return {name: found[name] for name in kept if found[name] != known[name].default}


def _facts(plan: TrainingPlan) -> dict[str, str]:
    """What was worked out, without numbers that the last bit of a processor's sums may change."""
    found = {each.what: each.value for each in plan.choices}
    found |= {name: str(count) for name, count in plan.sizes.items()}
    found |= {f"the values of {name!r}": digest for name, digest in plan.digests.items()}
    found |= {"steps": str(plan.steps), "classes": ", ".join(map(str, plan.classes))}
    return found | {"inputs": ", ".join(each.feed for each in plan.preprocessing.inputs)}


def _check_same(facts: list[dict[str, str]], rank: int) -> None:
    for name, value in facts[rank].items():
        first = facts[0].get(name)
        if value != first:
            raise DataError(
                f"process {rank} has other data than process 0: {name} {value!r}, not {first!r}\n"
                "give every machine the same files"
            )
