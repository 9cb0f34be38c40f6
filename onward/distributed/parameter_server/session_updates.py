"""SessionUpdates: the updates of a parameter server, made by a TrainingSession."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.programs.program import Array, Spec
from onward.sessions.training.session import TrainingSession

_STATE = "parameter_server"  # the server's own state among the properties of a checkpoint


class SessionUpdates:
    """A session that is given gradients and updates its parameters with them."""

    def __init__(self, session: TrainingSession) -> None:
        self.session = session
        layout = session.program.layout
        weights = layout.weights()
        self.parameters: Mapping[str, Spec] = {name: weights[name] for name in layout.names}
        self.statistics: Mapping[str, Spec] = {name: weights[name] for name in layout.state}
        self._rate = layout.settings.learning_rate

    @property
    def version(self) -> int:
        return self.session.steps

    def apply(
        self, gradients: Mapping[str, Array], statistics: Mapping[str, Array], rate: float
    ) -> bool:
        """Update with the session's learning rate times `rate`; whether there was an update."""
        session, before = self.session, self.session.steps
        session.set_gradients(gradients)
        if rate != 1.0:
            session.set_learning_rate(self._rate * rate)
        session.update_weights()
        if rate != 1.0:
            session.set_learning_rate(self._rate)
        if session.steps == before:
            return False
        session.set_parameters(statistics)
        return True

    def read(self) -> dict[str, Array]:
        return {**self.session.parameters, **self.session.statistics}

    # -- checkpoints ---------------------------------------------------------------------------

    def checkpoint(self, state: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, Any]]:
        """Tensors and properties of a checkpoint, with the state of the server."""
        self.session.properties[_STATE] = dict(state)
        return self.session.checkpoint()

    def restore(
        self, tensors: Mapping[str, Array], properties: Mapping[str, Any], where: str
    ) -> dict[str, Any] | None:
        """Continue from a checkpoint; the state of the server, if a server saved it."""
        self.session.restore(tensors, properties, where=where)
        self._rate = float(properties["training"]["updates"]["learning_rate"])
        state: dict[str, Any] | None = self.session.properties.get(_STATE)
        return state
