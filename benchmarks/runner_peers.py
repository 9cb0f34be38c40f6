"""Lightning and Hugging Face's Trainer for benchmarks/runner.py: same model, data and optimizer.

Neither writes checkpoints, evaluates, or shows progress; `onward train` does save.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import runner_cases as cases
import torch
from torch import nn
from torch.nn import functional as f

PACKAGES = {"lightning": ("lightning",), "huggingface": ("transformers", "accelerate")}


def missing(engine: str) -> list[str]:
    """The packages that an engine needs and that are not installed."""
    needed = PACKAGES.get(engine.split("-")[0], ())
    return [name for name in needed if importlib.util.find_spec(name) is None]


# -- models: those of `onward new`, with the same names of parameters ------------------------------


class Conv1d(nn.Module):
    """y = x W + b, as GPT-2 has it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Any) -> Any:
        return x @ self.weight + self.bias


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict(
            {"c_attn": Conv1d(width, 3 * width), "c_proj": Conv1d(width, width)}
        )
        self.mlp = nn.ModuleDict(
            {"c_fc": Conv1d(width, 4 * width), "c_proj": Conv1d(4 * width, width)}
        )

    def forward(self, x: Any) -> Any:
        b, t, width = x.shape
        split = self.attn["c_attn"](self.ln_1(x)).view(b, t, 3, cases.HEADS, width // cases.HEADS)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        y = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(b, t, width))
        y = f.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](y)


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(cases.WORDS, cases.WIDTH)
        self.wpe = nn.Embedding(cases.TIME, cases.WIDTH)
        self.h = nn.Sequential(*(Block(cases.WIDTH) for _ in range(cases.LAYERS)))
        self.ln_f = nn.LayerNorm(cases.WIDTH)

    def forward(self, x: Any) -> Any:
        y = self.wte(x) + self.wpe.weight[: x.shape[1]]
        return self.ln_f(self.h(y)) @ self.wte.weight.T


def make_module(name: str, folder: str) -> nn.Module:
    """The case's model with the weights of the ONNX file."""
    module = _untrained(cases.CASES[name].architecture)
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(Path(folder) / "model.onnx").graph
    found = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    names = [each for each in found if each.endswith((".weight", ".bias"))]
    wanted = module.state_dict()
    if len(wanted) != len(names):
        raise SystemExit(f"{name}: {sorted(names)} are not {sorted(wanted)}")
    # layers of nn.Sequential have numbers for names, but the same order
    pairs = zip(wanted, wanted if set(names) == set(wanted) else names)
    state = {mine: torch.tensor(found[theirs]) for mine, theirs in pairs}
    module.load_state_dict({key: _fit(state[key], wanted[key].shape) for key in wanted})
    return module


def _untrained(architecture: str) -> nn.Module:
    if architecture == "gpt2":
        return Gpt()
    layers: list[nn.Module] = []
    if architecture == "mlp":
        sizes = (cases.FEATURES, *cases.HIDDEN)
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], cases.CLASSES))
    sizes = (cases.IMAGE[0], *cases.CHANNELS)
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    flat = sizes[-1] * (cases.IMAGE[1] // 2 ** len(cases.CHANNELS)) ** 2
    layers += [nn.Flatten(), nn.Linear(flat, cases.LINEAR), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(cases.LINEAR, cases.CLASSES))


def _fit(weight: Any, shape: Any) -> Any:
    return weight if weight.shape == shape else weight.T.contiguous()


# -- data: read from the same file -------------------------------------------------------------


class Rows(torch.utils.data.Dataset[Any]):
    """Rows as the usual map-style dataset has them; images are changed one by one."""

    def __init__(self, x: Any, labels: Any, images: bool) -> None:
        self.x, self.labels, self.images = torch.tensor(x), torch.tensor(labels), images
        if images:
            pixels = self.x.to(torch.float32) / 255
            self.mean, self.std = (
                each.view(-1, 1, 1) for each in (pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)))
            )

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> dict[str, Any]:
        x = self._augment(self.x[row]) if self.images else self.x[row]
        return {"x": x, "labels": self.labels[row]}

    def _augment(self, image: Any) -> Any:
        """Flip, crop with padding, scale and normalize, as torchvision's transforms do."""
        crop, (_, height, width) = cases.CROP, image.shape
        if torch.rand(1) < 0.5:
            image = image.flip(-1)
        down, right = torch.randint(0, 2 * crop + 1, (2,)).tolist()
        image = f.pad(image, [crop] * 4)[:, down : down + height, right : right + width]
        return (image.to(torch.float32).div(255) - self.mean) / self.std


def read_rows(name: str, folder: str) -> Rows:
    case = cases.CASES[name]
    path = Path(folder) / case.data
    if case.architecture == "mlp":
        table = np.loadtxt(path, delimiter=",", skiprows=1)
        x = table[:, :-1]
        x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
        return Rows(x, table[:, -1].astype(np.int64), False)
    if case.architecture == "cnn":
        arrays = np.load(path)
        return Rows(arrays["image"], arrays["label"], True)
    tokens = np.frombuffer(path.read_bytes(), np.uint8).astype(np.int64) - 32
    count = (len(tokens) - 1) // cases.TIME
    x, y = (tokens[i : i + count * cases.TIME].reshape(count, cases.TIME) for i in (0, 1))
    return Rows(x, y, False)


def loss_of(scores: Any, labels: Any) -> Any:
    return f.cross_entropy(scores.flatten(0, -2), labels.flatten())


# -- the frameworks --------------------------------------------------------------------------------


def train(name: str, engine: str, folder: str, tick: Callable[[], None], steps: int) -> None:
    """Train on an engine: FRAMEWORK[-worker][-compiled]; `tick` is called after each step."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    framework, *how = engine.split("-")
    module, rows = make_module(name, folder), read_rows(name, folder)
    compiled = torch.compile(module) if "compiled" in how else module
    workers, batch = int("worker" in how), cases.CASES[name].batch
    run = _lightning if framework == "lightning" else _huggingface
    run(compiled, rows, batch, workers, folder, tick, steps)


def _lightning(
    module: Any, rows: Rows, batch: int, workers: int, folder: str, tick: Any, steps: int
) -> None:
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def training_step(self, rows: Any, _: int) -> Any:
            loss = loss_of(self.module(rows["x"]), rows["labels"])
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            rate, decay = cases.RATE, cases.DECAY
            return torch.optim.AdamW(self.parameters(), rate, weight_decay=decay, fused=True)

    class Tick(lightning.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            tick()

    loader = torch.utils.data.DataLoader(
        rows, batch, shuffle=True, num_workers=workers, persistent_workers=bool(workers)
    )
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=steps, max_epochs=-1, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, default_root_dir=folder,
        logger=lightning.pytorch.loggers.CSVLogger(folder), callbacks=[Tick()],
    )  # fmt: skip
    trainer.fit(Model(), loader)


def _huggingface(
    module: Any, rows: Rows, batch: int, workers: int, folder: str, tick: Any, steps: int
) -> None:
    import transformers

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Any, labels: Any) -> Any:
            scores = self.module(x)
            return {"loss": loss_of(scores, labels), "logits": scores}

    class Tick(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            tick()

    settings = transformers.TrainingArguments(
        output_dir=folder, per_device_train_batch_size=batch, max_steps=steps, use_cpu=True,
        learning_rate=cases.RATE, weight_decay=cases.DECAY, lr_scheduler_type="constant",
        max_grad_norm=0.0, save_strategy="no", report_to="none", disable_tqdm=True,
        dataloader_num_workers=workers, dataloader_persistent_workers=bool(workers),
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=Model(), args=settings, train_dataset=rows, callbacks=[Tick()]
    )
    trainer.train()
