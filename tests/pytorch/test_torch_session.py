"""Training sessions of PyTorch modules: steps equal torch's, and state moves in both directions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import onward
from onward import losses, optimizers
from onward.errors import OptionError
from onward.pytorch import write_to_module, write_to_optimizer
from onward.pytorch.torch_optimizers import KINDS, read_groups, read_state, write_state

Batch = dict[str, torch.Tensor]


class Net(nn.Module):
    """A CNN with a BatchNorm that is called twice, a frozen bias and a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3, bias=False)
        self.norm = nn.BatchNorm2d(3, momentum=0.3)
        self.last = nn.Linear(3, 4)
        self.last.bias.requires_grad_(False)
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        x = self.norm(self.norm(self.first(x)).relu())
        return self.last(x.mean((2, 3)))


def batches(count: int) -> list[Batch]:
    draw = torch.Generator().manual_seed(1)
    return [
        {
            "x": torch.randn(5, 1, 6, 6, generator=draw),
            "target": torch.randint(4, (5,), generator=draw),
        }
        for _ in range(count)
    ]


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    slow = [p for n, p in module.named_parameters() if "norm" in n]
    rest = [p for n, p in module.named_parameters() if "norm" not in n]
    groups = [{"params": slow, "lr": 0.003, "weight_decay": 0.0}, {"params": rest}]
    return torch.optim.AdamW(groups, lr=0.01, eps=1e-4, amsgrad=True)


def train(module: nn.Module, optimizer: torch.optim.Optimizer, given: Sequence[Batch]) -> None:
    for batch in given:
        optimizer.zero_grad()
        functional.cross_entropy(module(batch["x"]), batch["target"]).backward()
        optimizer.step()


def feeds(batch: Batch) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in batch.items()}


def same(module: nn.Module, other: nn.Module) -> None:
    found, expected = dict(module.state_dict()), dict(other.state_dict())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.integration
def test_training_moves_from_torch_to_a_session_and_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, given = Net(), batches(6)
    expected = copy.deepcopy(module)
    train(expected, adamw(expected), given)
    frozen = module.last.bias.detach().clone()

    optimizer = adamw(module)
    train(module, optimizer, given[:2])
    module.eval()  # the session trains all the same, and the module stays in its mode
    session = onward.TrainingSession.from_torch(
        module,
        nn.CrossEntropyLoss(),
        optimizer,
        example=(given[0]["x"],),
        targets=(given[0]["target"],),
    )
    assert not module.training and not module.norm.training
    assert session.steps == 2
    assert session.input_names == ["x", "target"]
    assert session.output_names == ["loss", "output"]
    assert "last.bias" not in session.parameters
    assert set(session.statistics) >= {"norm.running_mean", "norm.num_batches_tracked", "calls"}
    for batch in given[2:4]:
        session.step(feeds(batch))
    write_to_module(session, module)
    write_to_optimizer(session, optimizer, module)

    x = given[0]["x"][:3]
    predicted = session.predict({"x": x.numpy()})["output"]
    with torch.no_grad():
        inferred = copy.deepcopy(module)(x).numpy()
    np.testing.assert_allclose(predicted, inferred, atol=1e-5)
    session.export(tmp_path / "trained.onnx")
    [found] = onward.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": x.numpy()})
    np.testing.assert_allclose(found, inferred, atol=1e-5)

    module.train()
    train(module, optimizer, given[4:])
    same(module, expected)
    assert torch.equal(module.last.bias, frozen)


def test_loss_of_onward_and_optimizer_of_onward() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    expected = copy.deepcopy(module)
    x, y = torch.randn(5, 3), torch.randn(5, 2)
    session = onward.TrainingSession.from_torch(
        module, losses.MSE(), optimizers.SGD(lr=0.1, momentum=0.9), example=x
    )
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        session.step({"input": x.numpy(), "target": y.numpy()})
        optimizer.zero_grad()
        functional.mse_loss(expected(x), y).backward()
        optimizer.step()
    write_to_module(session, module)
    same(module, expected)
    ours = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    write_to_optimizer(session, ours, module)
    for a, b in zip(module.parameters(), expected.parameters()):
        buffers = [o.state[p]["momentum_buffer"] for o, p in ((ours, a), (optimizer, b))]
        torch.testing.assert_close(*buffers, rtol=1e-5, atol=1e-5)
    with pytest.raises(OptionError, match="trained by another optimizer than Adam"):
        write_to_optimizer(session, torch.optim.Adam(module.parameters()), module)
    with pytest.raises(OptionError, match=r"no tensor '0\.weight'"):
        write_to_module(session, nn.Linear(3, 2))


@pytest.mark.integration
def test_language_model_returns_its_own_loss() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=17,
        n_positions=16,
        n_embd=8,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    module = transformers.GPT2LMHeadModel(config).train()
    expected = copy.deepcopy(module)
    tokens = [torch.randint(17, (2, 5)) for _ in range(4)]

    def adam(network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(network.parameters(), lr=0.01, eps=1e-3)

    def steps(network: nn.Module, optimizer: torch.optim.Optimizer, given: Any) -> None:
        for ids in given:
            optimizer.zero_grad()
            network(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()

    steps(expected, adam(expected), tokens)
    optimizer = adam(module)
    session = onward.TrainingSession.from_torch(
        module, None, optimizer, example={"input_ids": tokens[0], "labels": tokens[0]}
    )
    assert session.program.targets == ("labels",)  # predictions need none
    assert "lm_head.weight" not in session.parameters  # which is transformer.wte.weight
    for ids in tokens[:2]:
        session.step({"input_ids": ids.numpy(), "labels": ids.numpy()})
    logits = session.predict({"input_ids": np.zeros((3, 7), np.int64)})["logits"]
    assert logits.shape == (3, 7, 17)
    write_to_module(session, module)
    write_to_optimizer(session, optimizer, module)
    steps(module, optimizer, tokens[2:])
    same(module, expected)


def test_dropout_drops_only_in_steps() -> None:
    module = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5))
    session = onward.TrainingSession.from_torch(
        onward.Module(module), losses.MSE(), optimizers.SGD(lr=0.0), example=torch.ones(4, 4)
    )
    feeds = {"input": np.ones((3, 4), np.float32), "target": np.zeros((3, 64), np.float32)}
    first, second = (session.step(feeds)["output"] for _ in range(2))
    assert (first == 0).any() and (first != second).any()
    assert (session.evaluate(feeds)["output"] != 0).all()


# -- optimizers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_state_of_an_optimizer_is_read_and_written(kind: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    module = nn.Linear(3, 2, bias=False)
    theirs = kind(module.parameters(), lr=0.1)
    for _ in range(3):
        module(torch.ones(1, 3)).sum().backward()
        theirs.step()
    groups = read_groups(theirs, module)
    assert groups[0].optimizer.lr == 0.1
    steps, slots = read_state(theirs, groups)
    new = kind(module.parameters(), lr=0.1)
    write_state(new, read_groups(new, module), steps, slots)
    assert theirs.state[module.weight].keys() == new.state[module.weight].keys()
    for name, value in theirs.state[module.weight].items():
        if value is not None:
            torch.testing.assert_close(new.state[module.weight][name], value)
            assert new.state[module.weight][name].dtype == value.dtype


def test_unknown_optimizer_is_refused_with_the_known_ones() -> None:
    module = nn.Linear(3, 2)
    with pytest.raises(OptionError, match=r"Rprop is not an optimizer.*\n.*'SGD', 'Adam', 'AdamW'"):
        read_groups(torch.optim.Rprop(module.parameters()), module)


def test_parameters_of_another_module_are_refused() -> None:
    with pytest.raises(OptionError, match=r"shape \[2, 3\] that the module does not have"):
        read_groups(torch.optim.SGD(nn.Linear(3, 2).parameters()), nn.Linear(3, 2))


def test_different_numbers_of_steps_are_refused() -> None:
    module = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    module.bias.grad = None
    optimizer.step()
    with pytest.raises(OptionError, match="1 steps with 'bias' and 2 with 'weight'"):
        read_state(optimizer, read_groups(optimizer, module))


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "mse"}, "the loss must be one of onward.losses or a function of torch"),
        ({"optimizer": "adam"}, "the optimizer must be one of onward.optimizers or torch.optim"),
        ({"targets": (torch.ones(1, 2),)}, "targets are for a loss of torch"),
        ({"options": {"frozen": ["bias"]}}, "options.frozen is not for a PyTorch module"),
        ({"module": "model.onnx"}, "from_torch takes a torch.nn.Module, not str"),
        ({"loss": None}, r"Linear returns 'output' of shape .* which is not a loss"),
    ],
)
def test_wrong_arguments_are_explained(changes: dict[str, Any], message: str) -> None:
    given = {"module": nn.Linear(3, 2), "loss": losses.MSE(), "optimizer": optimizers.SGD()}
    given |= {"example": torch.ones(4, 3)} | changes
    with pytest.raises(OptionError, match=message):
        onward.TrainingSession.from_torch(**given)


def test_groups_of_the_options_and_of_the_optimizer_are_refused() -> None:
    module = nn.Linear(3, 2)
    with pytest.raises(OptionError, match="both give parameter groups"):
        onward.TrainingSession.from_torch(
            module,
            losses.MSE(),
            torch.optim.SGD(module.parameters()),
            example=torch.ones(4, 3),
            options={"groups": [optimizers.Group(parameters="bias", lr=0.5)]},
        )


def test_module_without_parameters_to_train_is_refused() -> None:
    module = nn.Linear(3, 2).requires_grad_(False)
    with pytest.raises(OptionError, match="there is nothing to train"):
        onward.TrainingSession.from_torch(
            module, losses.MSE(), optimizers.SGD(), example=torch.ones(4, 3)
        )


def test_memory_is_planned_for_the_provider() -> None:
    """A compiled step draws dropout masks where they are read: they are no memory to plan."""
    module = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    opened = [
        onward.TrainingSession.from_torch(
            module,
            nn.functional.cross_entropy,
            torch.optim.SGD(module.parameters(), lr=0.1),
            example=torch.zeros(4, 6),
            targets=torch.zeros(4, dtype=torch.int64),
            options={"memory": onward.Memory(level=1)},
            providers=[(name, {"device": "cpu"})],
        )
        for name in ("TorchExecutionProvider", "InductorExecutionProvider")
    ]
    kept, drawn = (len(session.program.neutral.memory.most_bytes) for session in opened)
    assert drawn > kept
