"""The graph of a session's last step, forward and backward, with everything that it reads.

In standard operators, for any engine: to look at its values, or to profile it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.graph.shapes.infer import infer_shapes
from onward.passes.composites import inline_calls
from onward.passes.fed_uniforms import feed_uniforms
from onward.programs.program import DRAW, SCALE, Array
from onward.providers.choose import INDUCTOR, TORCH
from onward.providers.options import SessionOptions
from onward.providers.ort.training.lowered import MEASURE, NOISE
from onward.sessions.inference import InferenceSession
from onward.sessions.training.session import TrainingSession

_NOISE_SIZE = "noise_size"


def training_graph(
    session: TrainingSession, feeds: Mapping[str, Any]
) -> tuple[ir.Model, dict[str, Array]]:
    """The train graph in standard operators, and all its inputs as in the last step."""
    program, layout = session.program, session.program.layout
    held = {**layout.initial, **session.parameters, **session.statistics}
    held[SCALE] = np.array(session.loss_scale, layout.settings.loss_dtype)
    seed, step = layout.settings.seed, session.steps
    size = None
    if program.neutral is None:
        model = ir.from_proto(onnx.load_from_string(program.lowered.train))
        if program.lowered.noise_size is not None:
            size = ir.from_proto(onnx.load_from_string(program.lowered.noise_size))
    else:
        model = program.neutral.train.clone()
        if runs_in_torch(session):
            step += max(session.skipped_steps - 1, 0)  # an engine that runs ahead counts them
        else:
            size = feed_uniforms(model, program.neutral.draws, NOISE)
        inline_calls(model)
        infer_shapes(model)
    held[DRAW] = np.array([seed, step, 0], np.int64)
    held |= {name: np.asarray(feed) for name, feed in feeds.items()}
    if size is not None:
        count = int(run_unoptimized(size, held)[_NOISE_SIZE])
        generator = np.random.Generator(np.random.SFC64([seed, step, 0]))
        held[NOISE] = generator.random(count, np.float32)
    model.graph.outputs[:] = [v for v in model.graph.outputs if v.name != MEASURE]
    names = [str(value.name) for value in model.graph.inputs]
    return model, {name: held[name] for name in names}


def runs_in_torch(session: TrainingSession) -> bool:
    """Whether a session's steps run in torch."""
    return session.get_providers()[0] in (TORCH, INDUCTOR)


def run_unoptimized(model: ir.Model, inputs: Mapping[str, Array]) -> dict[str, Any]:
    """All outputs of a graph, as onnxruntime computes them without optimising it."""
    options = SessionOptions(log_severity_level=4, graph_optimization_level=0)
    with InferenceSession(model.clone(), options) as session:
        fed = {each.name: inputs[each.name] for each in session.get_inputs()}
        names = [each.name for each in session.get_outputs()]
        return dict(zip(names, session.run(names, fed)))
