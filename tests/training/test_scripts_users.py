"""More scripts of users of onnxruntime.training: how they change files and models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.training.nets import float_info, mlp, model_of
from tests.training.test_scripts import run_unchanged

pytestmark = pytest.mark.integration


def language(words: int = 9, size: int = 6) -> onnx.ModelProto:
    """Scores of the next word, from the words so far and a state."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["emb.weight", "x"], ["e"]),
        helper.make_node("LayerNormalization", ["e", "ln.weight", "ln.bias"], ["n"]),
        helper.make_node("MatMul", ["n", "att.weight"], ["a"]),
        helper.make_node("Add", ["a", "state"], ["s"]),
        helper.make_node("Tanh", ["s"], ["next_state"]),
        helper.make_node("MatMul", ["next_state", "head.weight"], ["head"]),
    ]
    shapes = {"emb.weight": (words, size), "ln.weight": (size,), "ln.bias": (size,)}
    shapes |= {"att.weight": (size, size), "head.weight": (size, words)}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["batch", "time"])
    state, after = (
        float_info("state", ["batch", 1, size]),
        float_info("next_state", ["batch", "time", size]),
    )
    outputs = [float_info("head", ["batch", "time", words]), after]
    return model_of(nodes, [x, state], outputs, weights)


TUNING = """
    import numpy as np
    import onnx
    import onnxruntime.training.onnxblock as onnxblock
    import onnxruntime.training.onnxblock.blocks as blocks
    from onnx import helper, numpy_helper
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    class NextWord(onnxblock.TrainingBlock):
        def __init__(self, words):
            super().__init__()
            self.words = words
            self.pad, self.reshape = blocks._BinaryOp("Pad"), blocks._BinaryOp("Reshape")
            self.entropy = onnxblock.loss.CrossEntropyLoss(reduction="none")
            self.mask = blocks.InputLike("x")
            self.cast = blocks.Cast(onnx.TensorProto.FLOAT)
            self.mul, self.div = blocks.Mul(), blocks.Div()
            self.sum = blocks.ReduceSum(keepdims=False)

        def build(self, scores):
            constants = {"shift": [0, -1, 0, 1], "flat": [-1], "rows": [-1, self.words]}
            for name, numbers in constants.items():
                array = np.array(numbers, np.int64)
                self.base.graph.initializer.append(numpy_helper.from_array(array, name))
            labels = self.reshape(self.pad("x", "shift"), "flat")  # made, not fed
            each = self.entropy(self.reshape(scores, "rows"), labels)
            mask = self.reshape(self.cast(self.mask("mask")), "flat")
            return self.div(self.sum(self.mul(each, mask)), self.sum(mask))

    model = onnx.load("model.onnx")
    block = NextWord(9)
    rng = np.random.default_rng(0)
    tensors, nodes = [], []
    for weight in model.graph.initializer:  # W + A B in place of each matrix
        if len(weight.dims) < 2:
            continue
        name, (rows, columns) = weight.name, weight.dims
        weight.name = "_" + name
        low = {"A": rng.normal(size=(rows, 2)), "B": np.zeros((2, columns))}
        for side, array in low.items():
            tensors.append(numpy_helper.from_array(array.astype(np.float32), name + side))
            block.requires_grad(name + side)
        nodes.append(helper.make_node("MatMul", [name + "A", name + "B"], [name + "AB"]))
        nodes.append(helper.make_node("Add", ["_" + name, name + "AB"], [name]))
    model.graph.initializer.extend(tensors)
    nodes += model.graph.node
    del model.graph.node[:]
    model.graph.node.extend(nodes)

    with onnxblock.base(model):
        block("head")
        training_model, eval_model = block.to_model_proto()
        parameters = block.parameters()
    optimizer = onnxblock.optim.AdamW(
        betas=[0.9, 0.99], eps=1e-18, clip_grad=onnxblock.optim.ClipGradNorm(0.5)
    )
    with onnxblock.empty_base():
        optimizer(parameters)
        onnx.save(optimizer.to_model_proto(), "optimizer.onnx")
    assert sorted(tensor.name for tensor in parameters[0])[0] == "att.weightA"
    assert parameters[1] == []

    for made, path in ((training_model, "training.onnx"), (eval_model, "eval.onnx")):
        x, state, mask, *others = made.graph.input
        assert (x.name, state.name, mask.name) == ("x", "state", "mask")
        moved = onnx.GraphProto(input=[x, mask, state, *others])
        del made.graph.input[:]
        made.graph.input.extend(moved.input)
        external = dict(save_as_external_data=True, location=path + ".data", size_threshold=99)
        onnx.save(made, path, **external)
    onnxblock.save_checkpoint(parameters, "checkpoint")

    state = CheckpointState.load_checkpoint("checkpoint")
    module = Module("training.onnx", state, "eval.onnx")
    optimizer = Optimizer("optimizer.onnx", module)
    optimizer.set_learning_rate(0.02)
    assert module.input_names() == ["x", "mask", "state"]
    x = rng.integers(0, 9, (4, 7))
    mask = np.ones_like(x)
    mask[:, -1] = 0
    batch = x, mask, np.zeros((4, 1, 6), np.float32)
    first = module(*batch)
    for _ in range(60):
        optimizer.step()
        module.lazy_reset_grad()
        loss = module(*batch)
    assert loss < first / 2, (first, loss)
    module.eval()
    assert abs(module(*batch) - loss) < 1e-5
"""

DEVICE = """
    from pathlib import Path

    import numpy as np
    import onnx
    import onnxruntime as ort
    import onnxruntime.training.api as training
    from onnxruntime.training import artifacts

    onnx_model = onnx.load("model.onnx")
    folder = Path("artifacts")
    artifacts.generate_artifacts(
        onnx_model,
        requires_grad={"fc2.weight", "fc2.bias"},
        frozen_params={"fc1.weight", "fc1.bias"},
        loss=artifacts.LossType(1),
        optimizer=getattr(artifacts.OptimType, "SGD"),
        artifact_directory=folder,
        additional_output_names=[output.name for output in onnx_model.graph.output],
    )
    for path in sorted(folder.glob("*.onnx")):  # for an old runtime
        model = onnx.load(path)
        model.ir_version = 7
        for node in model.graph.node:
            if node.op_type == "BatchNormalization":
                del node.output[1:]
        onnx.save(model, path)
        onnx.shape_inference.infer_shapes_path(path, "inferred.onnx")

    module = training.Module(
        train_model_uri=folder / "training_model.onnx",
        eval_model_uri=folder / "eval_model.onnx",
        state=training.CheckpointState.load_checkpoint(folder / "checkpoint"),
        device="cpu",
    )
    optimizer = training.Optimizer(folder / "optimizer_model.onnx", module)
    snapshot = module.get_contiguous_parameters(trainable_only=True)
    rng = np.random.default_rng(0)
    x = np.fliplr(rng.normal(size=(8, 4)).astype(np.float32))  # strides below zero
    target = x[:, :3] * 2

    runs = []
    for _ in range(2):
        module.copy_buffer_to_parameters(snapshot, trainable_only=True)
        module._state.parameters["fc1.weight"].data = np.ones((5, 4), np.float32)
        optimizer.set_learning_rate(0.02)
        module.train()
        losses = []
        for _ in range(25):
            module.lazy_reset_grad()
            loss, _ = module(x, target)
            optimizer.step()
            losses.append(f"{loss:.6f}")  # a number, whatever the shape of the output
        runs.append(losses)
    assert runs[0] == runs[1] and float(losses[-1]) < float(losses[0])

    module.eval()
    names = [output.name for output in onnx.load(folder / "eval_model.onnx").graph.output]
    expected = module(x, target)[1]
    for _ in range(2):
        module.export_model_for_inferencing("inference.onnx", names[1:])
    session = ort.InferenceSession("inference.onnx", providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(output, expected, rtol=1e-6)

    module._state.save_checkpoint(module._state, folder / "later", include_optimizer_state=True)
    later = training.CheckpointState.load_checkpoint(folder / "later")
    again = training.Module(folder / "training_model.onnx", later)
    rate = training.Optimizer(folder / "optimizer_model.onnx", again).get_learning_rate()
    assert abs(rate - 0.02) < 1e-9
"""

FORCES = """
    import numpy as np
    import onnx
    import onnxruntime as ort
    from onnx import helper
    from onnxruntime.training import artifacts
    from onnxruntime.training.api import CheckpointState

    # the gradient of a sum by an input, as a plain model: the training graph gives it by name
    model = onnx.load("model.onnx")
    model.graph.node.append(helper.make_node("ReduceSum", ["output"], ["energy"], keepdims=0))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("energy", 1, []))
    artifacts.generate_artifacts(
        model,
        requires_grad=["input"],
        frozen_params=[weight.name for weight in model.graph.initializer],
        prefix="forces_",
    )
    training_model = onnx.load("forces_training_model.onnx")
    kept = [o for o in training_model.graph.output if not o.name.endswith("accumulation.out")]
    del training_model.graph.output[:]
    gradient = helper.make_tensor_value_info("input_grad", 1, ["batch", 4])
    training_model.graph.output.extend([*kept, gradient])
    onnx.save(training_model, "forces.onnx")

    state = CheckpointState.load_checkpoint("forces_checkpoint")
    parameters = {name: parameter.data for name, parameter in state.parameters}
    session = ort.InferenceSession("forces.onnx", providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)

    def run(x):
        feeds = {"input": x, "lazy_reset_grad": np.array([True])}
        for each in session.get_inputs():
            if each.name in parameters:
                feeds[each.name] = parameters[each.name]
            elif each.name.endswith("accumulation.buffer"):
                feeds[each.name] = np.zeros_like(x)
        return dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds)))

    found = run(x)
    step = np.zeros_like(x)
    step[2, 1] = 1e-2
    slope = (run(x + step)["energy"] - run(x - step)["energy"]) / 2e-2
    assert abs(slope - found["input_grad"][2, 1]) < 1e-2, (slope, found["input_grad"][2, 1])
"""


@pytest.mark.parametrize(
    ("script", "model"),
    [(TUNING, language()), (DEVICE, mlp()), (FORCES, mlp())],
    ids=["low-rank tuning of a language model", "files of a device", "forces"],
)
def test_a_script_runs_unchanged(script: str, model: onnx.ModelProto, tmp_path: Path) -> None:
    assert run_unchanged(script, model, tmp_path) == (0, "")
