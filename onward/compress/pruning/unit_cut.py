"""UnitCut: choose the units that a model needs least, and cut them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onward.compress.pruning import activations, importance, sizes, speed
from onward.compress.pruning.axes import Array, Positions
from onward.compress.pruning.pruning_task import PruningTask
from onward.compress.pruning.removal import Removal, remove_units, removed_labels
from onward.compress.pruning.unit_costs import UnitCosts, count_macs
from onward.compress.pruning.units import UnitGroup, find_groups, find_positions
from onward.compress.report import Change
from onward.errors import OptionError
from onward.losses.loss import Loss


class UnitCut:
    """The choice of units, and the model without them."""

    def __init__(
        self, task: PruningTask, model: ir.Model, only: Sequence[str], protect: Sequence[str]
    ) -> None:
        self._task, self._model = task, model
        self._positions: Positions = find_positions(model)
        everything = find_groups(model, self._positions)
        self._groups = sizes.select(everything, only, protect)
        self._importance: dict[str, Array] = {}
        self._moments: dict[str, activations.ActivationMoments] = {}
        self.notes: list[str] = []
        if self._groups:
            return
        if everything:
            names = ", ".join(dict.fromkeys(group.kind for group in everything))
            raise OptionError(
                f"nothing to prune: only= and protect= leave out all groups\nthere are {names}"
            )
        raise OptionError(
            "nothing to prune: every axis of the model's weights has to keep its size, because of "
            "its inputs, outputs or operators\nlayers= removes residual blocks, sparsity= sets "
            "weights to zero"
        )

    def rate(self, kind: str, loss: Loss | None) -> None:
        """Rate the importance of every unit."""
        task = self._task
        task.progress(f"rate {sum(group.count for group in self._groups)} units", 0, None)
        found = importance.by_magnitude(self._model, self._positions, self._groups)
        rated = found
        if kind == "activation":
            consumers = activations.find_consumers(self._model, self._positions)
            self._moments = activations.measure_moments(
                self._model, consumers, task.calibration, task.providers
            )
            rated = importance.by_activation(
                consumers, self._moments, self._positions, self._groups
            )
            rated = {name: each for name, each in rated.items() if each.any()}
        if kind == "gradient":
            rated = importance.by_gradient(
                self._model,
                self._positions,
                self._groups,
                task.calibration,
                loss=loss,
                providers=task.providers,
                seed=task.seed,
            )
        left = [group.name for group in self._groups if group.name not in rated]
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            self.notes.append(
                f"the units of {left[0]}{more} were rated by magnitude: {kind} has no figures of "
                "them (it has none inside of If, Loop or Scan)"
            )
        self._importance = {**found, **rated}

    def cut(self) -> tuple[ir.Model, list[Change], bool]:
        """The model without the units, what was removed, and whether the goal was reached."""
        goal, reached = self._task.goal, True
        if goal.keep is not None:
            removal = sizes.keep_share(
                self._groups, self._importance, goal.keep, self._task.multiple
            )
        elif goal.macs is not None:
            removal, reached = self._reach_macs(goal.macs)
        else:
            removal, reached = self._reach_speedup(goal.speedup or 1.0)
        return self._write(removal), self._changes(removal), reached

    def _costs(self) -> UnitCosts:
        return UnitCosts(self._model, self._positions, self._task.dynamic_sizes())

    def _reach_macs(self, macs: int) -> tuple[Removal, bool]:
        costs = self._costs()
        total = count_macs(self._model, self._task.dynamic_sizes())
        if macs >= total:
            raise OptionError(
                f"macs={macs} must be below the {total} multiplications of the model\n"
                "give a smaller number"
            )
        fixed = total - costs.macs()  # of other operators
        prices = costs.of_units(self._groups)
        wanted = float(macs - fixed)
        removal: Removal = {}
        for _ in range(4):  # the estimate leaves out operators that become smaller too
            removal = self._choose(costs, prices, wanted)
            counted = count_macs(self._write(removal), self._task.dynamic_sizes())
            if counted <= macs:
                return removal, True
            wanted -= counted - macs
        self.notes.append(
            f"{macs} multiplications were not reached: the smallest model found has {counted}"
        )
        return removal, False

    def _choose(self, costs: UnitCosts, prices: Mapping[str, float], macs: float) -> Removal:
        return sizes.keep_macs(
            self._groups,
            self._importance,
            prices,
            costs,
            macs,
            self._task.multiple,
            len(self._positions.labels),
        )

    def _reach_speedup(self, speedup: float) -> tuple[Removal, bool]:
        costs, task = self._costs(), self._task
        prices = speed.measure_prices(
            self._model,
            self._groups,
            costs.of_units(self._groups),
            task.timed,
            task.providers,
            task.progress,
        )
        found = speed.reach_speedup(
            task.original,
            lambda share: self._choose(costs, prices, share * costs.macs()),
            self._write,
            speedup,
            task.timed,
            task.providers,
            task.progress,
        )
        return found.removal, found.reached

    def _write(self, removal: Removal) -> ir.Model:
        """The model without these units, their means in the biases if they were measured."""
        if not self._moments:
            return remove_units(self._model, removal)
        copy = self._model.clone()
        positions = find_positions(copy)
        removed = removed_labels(find_groups(copy, positions), removal, len(positions.labels))
        return remove_units(
            activations.fold_means(copy, removed, positions, self._moments), removal
        )

    def _changes(self, removal: Removal) -> list[Change]:
        return [
            Change(
                name=group.name,
                operator=_operator_of(self._model, group),
                format=f"{group.count - len(removal[group.name])} of {group.count} {group.kind}",
            )
            for group in self._groups
            if removal.get(group.name)
        ]


def _operator_of(model: ir.Model, group: UnitGroup) -> str:
    """The operator that reads a group's first weight."""
    for graph in model.graphs():
        value = graph.initializers.get(group.weights[0][0])
        if value is not None:
            for use in value.uses():
                return use.node.op_type
    return ""
