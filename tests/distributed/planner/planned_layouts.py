"""Layouts of programs, written by hand, for tests of the planner."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onward.programs.program import Layout, Settings, Shape, TrainableParameter, UpdateLayout


def make_layout(
    *updates: Mapping[str, Shape],
    slots: tuple[str, ...] = ("m", "v"),
    flat: bool = True,
    accumulate: int = 1,
    statistics: Mapping[str, Shape] | None = None,
    dtype: str = "float32",
) -> Layout:
    """A layout whose updates have these parameters, each with slots of its own shape."""
    shapes = {name: shape for update in updates for name, shape in update.items()}
    known = dict(statistics or {})
    return Layout(
        parameters=tuple(
            TrainableParameter(name=name, shape=shape, gradient=f"{name}_grad")
            for name, shape in shapes.items()
        ),
        updates=tuple(
            UpdateLayout(
                dtype=dtype,
                parameters=tuple(update),
                flat=flat,
                slots={slot: dict(update) for slot in slots},
                initial={},
                learning_rate=0.1,
                optimizer="",
            )
            for update in updates
        ),
        state={name: f"{name}.new" for name in known},
        frozen=(),
        inputs=("x",),
        targets=(),
        outputs=(),
        model_outputs=(),
        labels=(),
        settings=Settings(
            accumulate=accumulate,
            clip_norm=None,
            skip_nonfinite=True,
            seed=0,
            scaled=False,
            loss_scale=None,
            schedule=None,
            learning_rate=0.1,
            loss_dtype="float32",
            averaged=False,
        ),
        initial={name: np.zeros(shape, np.float32) for name, shape in known.items()},
    )
