"""Scripts written for onnxruntime.training run unchanged, and learn."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import onnx
import pytest

from tests.training.nets import convolutional, mlp, two_outputs

pytestmark = pytest.mark.integration

NOTEBOOK = """
    import numpy as np
    import onnx
    import onnxruntime.training.onnxblock as onnxblock
    from onnxruntime import InferenceSession
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    onnx_model = onnx.load("model.onnx")

    class MNISTTrainingBlock(onnxblock.TrainingBlock):
        def __init__(self):
            super(MNISTTrainingBlock, self).__init__()
            self.loss = onnxblock.loss.CrossEntropyLoss()

        def build(self, output_name):
            return self.loss(output_name), output_name

    training_block = MNISTTrainingBlock()
    for param in onnx_model.graph.initializer:
        training_block.requires_grad(param.name, True)

    model_params = None
    with onnxblock.base(onnx_model):
        _ = training_block(*[output.name for output in onnx_model.graph.output])
        training_model, eval_model = training_block.to_model_proto()
        model_params = training_block.parameters()

    optimizer_block = onnxblock.optim.AdamW()
    with onnxblock.empty_base() as accessor:
        _ = optimizer_block(model_params)
        optimizer_model = optimizer_block.to_model_proto()

    onnxblock.save_checkpoint(model_params, "checkpoint")
    onnx.save(training_model, "training_model.onnx")
    onnx.save(eval_model, "eval_model.onnx")
    onnx.save(optimizer_model, "optimizer.onnx")

    state = CheckpointState.load_checkpoint("checkpoint")
    model = Module("training_model.onnx", state, "eval_model.onnx")
    optimizer = Optimizer("optimizer.onnx", model)
    optimizer.set_learning_rate(0.05)

    rng = np.random.default_rng(0)
    data = rng.normal(size=(256, 4)).astype(np.float32)
    target = data[:, :3].argmax(axis=1)
    train_loader = [(data[i : i + 32], target[i : i + 32]) for i in range(0, 256, 32)]

    def trainEpoch(epoch):
        model.train()
        losses = []
        for _, (data, target) in enumerate(train_loader):
            forward_inputs = [data, target]
            train_loss, _ = model(*forward_inputs)
            optimizer.step()
            model.lazy_reset_grad()
            losses.append(train_loss)
        print(f"Epoch: {epoch+1},Train Loss: {sum(losses)/len(losses):.4f}")

    def testEpoch(epoch):
        model.eval()
        right = []
        for _, (data, target) in enumerate(train_loader):
            test_loss, logits = model(*[data, target])
            right.append(np.argmax(logits, axis=1) == target)
        return np.concatenate(right).mean()

    for epoch in range(8):
        trainEpoch(epoch)
        accuracy = testEpoch(epoch)
    assert accuracy > 0.95, accuracy

    model.export_model_for_inferencing("inference_model.onnx", ["output"])
    session = InferenceSession("inference_model.onnx", providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["input"]
    output = session.run(None, {session.get_inputs()[0].name: data})
    assert (np.argmax(output[0], axis=1) == target).mean() == accuracy
"""

TRANSFER = """
    import numpy as np
    import onnx
    from onnxruntime.training import artifacts
    from onnxruntime.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer

    onnx_model = onnx.load("model.onnx")
    requires_grad = ["fc.weight", "fc.bias"]
    frozen_params = [
        param.name for param in onnx_model.graph.initializer if param.name not in requires_grad
    ]
    artifacts.generate_artifacts(
        onnx_model,
        requires_grad=requires_grad,
        frozen_params=frozen_params,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory="artifacts",
        additional_output_names=["output"],
    )

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, size=32).astype(np.int64)
    images = (rng.normal(size=(32, 1, 6, 6)) + 3 * labels[:, None, None, None]).astype(np.float32)

    def load(path):
        state = CheckpointState.load_checkpoint(path)
        model = Module("artifacts/training_model.onnx", state, "artifacts/eval_model.onnx")
        optimizer = Optimizer("artifacts/optimizer_model.onnx", model)
        return state, model, optimizer, LinearLRScheduler(optimizer, 2, 40, 0.05)

    def train(model, optimizer, scheduler, steps):
        model.train()
        losses = []
        for _ in range(steps):
            loss, _ = model(images, labels)
            optimizer.step()
            scheduler.step()
            model.lazy_reset_grad()
            losses.append(float(loss))
        return losses

    state, *parts = load("artifacts/checkpoint")
    frozen = {name: p.data for name, p in state.parameters if not p.requires_grad}
    assert set(frozen) == set(frozen_params)
    whole = train(*parts, 20)
    assert whole[-1] < whole[0] / 2, whole
    assert (state.parameters["conv.weight"].data == frozen["conv.weight"]).all()
    assert not (state.parameters["bn.running_mean"].data == frozen["bn.running_mean"]).all()

    state, *parts = load("artifacts/checkpoint")
    train(*parts, 12)
    state.properties["epoch"] = 12
    CheckpointState.save_checkpoint(state, "resume.ckpt", include_optimizer_state=True)

    state, *parts = load("resume.ckpt")
    assert state.properties["epoch"] == 12
    assert train(*parts, 8) == whole[12:]
"""

OWN_LOSS = """
    import numpy as np
    import onnx
    import onnxruntime.training.onnxblock as onnxblock
    from onnxruntime import OrtValue
    from onnxruntime.training import artifacts
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    class WeightedAverageLoss(onnxblock.Block):
        def __init__(self):
            self._loss1 = onnxblock.loss.MSELoss()
            self._loss2 = onnxblock.loss.MSELoss()
            self._w1 = onnxblock.blocks.Constant(0.4)
            self._w2 = onnxblock.blocks.Constant(0.6)
            self._add = onnxblock.blocks.Add()
            self._mul = onnxblock.blocks.Mul()

        def build(self, loss_input_name1, loss_input_name2):
            return self._add(
                self._mul(self._w1(), self._loss1(loss_input_name1, target_name="target1")),
                self._mul(self._w2(), self._loss2(loss_input_name2, target_name="target2")),
            )

    artifacts.generate_artifacts(
        onnx.load("model.onnx"),
        requires_grad=["wa", "wb"],
        loss=WeightedAverageLoss(),
        optimizer=artifacts.OptimType.SGD,
        artifact_directory="artifacts",
        nominal_checkpoint=True,
        additional_output_names=["a", "b"],
    )

    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 4)).astype(np.float32)
    t1, t2 = (rng.normal(size=(8, 2)).astype(np.float32) for _ in range(2))

    class Client:
        def __init__(self, checkpoint, rows):
            self.state = CheckpointState.load_checkpoint(f"artifacts/{checkpoint}")
            self.model = Module(
                "artifacts/training_model.onnx", self.state, "artifacts/eval_model.onnx"
            )
            self.optimizer = Optimizer("artifacts/optimizer_model.onnx", self.model)
            self.batch = [array[rows] for array in (x, t1, t2)]

        def step(self, parameters):
            self.model.copy_buffer_to_parameters(parameters, trainable_only=False)
            self.model.train()
            self.model(*map(OrtValue.ortvalue_from_numpy, self.batch))
            self.optimizer.set_learning_rate(0.3)
            self.optimizer.step()
            self.model.lazy_reset_grad()
            return self.model.get_contiguous_parameters(trainable_only=False).numpy()

    server = Client("checkpoint", slice(None))
    server.model.train()
    loss, a, b = server.model(*server.batch)
    np.testing.assert_allclose(loss, 0.4 * ((a - t1) ** 2).mean() + 0.6 * ((b - t2) ** 2).mean())
    once = server.state.parameters["wa"].grad
    np.testing.assert_allclose(once, 0.4 * 2 * x.T @ (a - t1) / t1.size, rtol=1e-4, atol=1e-6)
    server.model(*server.batch)  # gradients add up
    np.testing.assert_allclose(server.state.parameters["wa"].grad, 2 * once, rtol=1e-5)
    server.model.lazy_reset_grad()

    clients = [Client("nominal_checkpoint", rows) for rows in (slice(0, 4), slice(4, 8))]
    parameters = server.model.get_contiguous_parameters(trainable_only=False)
    for _ in range(10):
        buffers = [client.step(parameters) for client in clients]
        parameters = OrtValue.ortvalue_from_numpy(np.mean(buffers, axis=0))
    server.model.copy_buffer_to_parameters(parameters, trainable_only=False)
    server.model.eval()
    assert server.model(*server.batch)[0] < loss / 2
"""


@pytest.mark.parametrize(
    ("script", "model"),
    [(NOTEBOOK, mlp()), (TRANSFER, convolutional()), (OWN_LOSS, two_outputs())],
    ids=["notebook", "transfer and resume", "own loss, federated"],
)
def test_a_script_runs_unchanged(script: str, model: onnx.ModelProto, tmp_path: Path) -> None:
    assert run_unchanged(script, model, tmp_path) == (0, "")


def run_unchanged(script: str, model: onnx.ModelProto, folder: Path) -> tuple[int, str]:
    """The exit code and the output of a script that uses only the peer's names."""
    onnx.save(model, folder / "model.onnx")
    (folder / "script.py").write_text(textwrap.dedent(script))
    start = "import onward.compat, runpy; onward.compat.install(); runpy.run_path('script.py')"
    command = [sys.executable, "-W", "error", "-c", start]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr
