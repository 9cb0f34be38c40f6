"""onward.Module against the module that it wraps: results, gradients, buffers, modes."""

from __future__ import annotations

import copy
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn  # noqa: E402

from onward.pytorch.fallback import CannotCapture, FallbackWarning  # noqa: E402
from onward.pytorch.module import Module  # noqa: E402
from onward.pytorch.module_options import ModuleOptions  # noqa: E402

Pair = namedtuple("Pair", "first second")


@dataclass
class Batch:
    x: Any
    scale: float
    extra: Any = None


class Net(nn.Module):
    """A convolution, BatchNorm and Dropout."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        # with a bias, whose gradient is zero, AdamW would turn rounding into steps
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.drop(torch.relu(self.norm(self.conv(x))).mean((2, 3))))


class Nested(nn.Module):
    """Takes and returns nested data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, batch: Batch, more: dict[str, Any], flag: bool = True) -> Any:
        y = self.linear(batch.x) * batch.scale + more["bias"][0]
        count = torch.tensor(batch.x.shape[1])
        return {
            "out": Pair(y, [y.sum(), None, 5]),
            "count": count,
            "batch": Batch(y * 2, 1.5),
            "given": more["bias"][0],
            "flag": flag,
        }


class Tied(nn.Module):
    """An embedding that is the last layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids: Any, labels: Any = None) -> Any:
        scores = self.out(torch.tanh(self.mix(self.embed(ids))))
        if labels is None:
            return scores
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        return {"loss": loss, "scores": scores}


def image(n: int = 4) -> Any:
    return torch.randn(n, 2, 5, 5)


def ids(n: int = 3, length: int = 5) -> Any:
    return torch.randint(7, (n, length))


def same(a: Any, b: Any, tolerance: float = 1e-5) -> bool:
    a, b = a.detach(), b.detach()
    return bool((a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max())))


def assert_equal_gradients(ours: nn.Module, theirs: nn.Module) -> None:
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        assert a.grad is None or same(a.grad, b.grad), name


def wrapped(module: nn.Module, **options: Any) -> tuple[Module, nn.Module]:
    torch.manual_seed(0)
    theirs = copy.deepcopy(module)
    return Module(module, ModuleOptions(fallback="forbid", **options)), theirs


@pytest.mark.parametrize("provider", ["onnxruntime", "torch"])
def test_training_changes_parameters_and_statistics_as_in_eager_mode(provider: str) -> None:
    ours, theirs = wrapped(Net(), provider=provider)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (ours, theirs)]
    for _ in range(3):
        x = image()
        x.requires_grad_()
        other = x.detach().clone().requires_grad_()
        for module, given, optimizer in zip((ours, theirs), (x, other), optimizers):
            optimizer.zero_grad()
            module(given).square().sum().backward()
        assert_equal_gradients(ours, theirs)
        assert same(x.grad, other.grad)
        for optimizer in optimizers:
            optimizer.step()
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values()):
        assert same(a.double(), b.double(), 1e-4), name
    assert len(ours.programs) == 1


@pytest.mark.integration
def test_eval_mode_and_no_grad_have_programs_of_their_own() -> None:
    ours, theirs = wrapped(Net(drop=0.5))
    x = image()
    ours.eval(), theirs.eval()
    assert not ours.norm.training
    assert same(ours(x), theirs(x))
    with torch.no_grad():
        assert not ours(x).requires_grad
    assert len(ours.programs) == 2


def test_nested_arguments_and_results_keep_their_structure() -> None:
    ours, theirs = wrapped(Nested())
    bias = torch.randn(3)
    given = Batch(torch.randn(2, 3), 0.5), {"bias": (bias, None)}
    a, b = ours(*given), theirs(*given)
    assert type(a["out"]) is Pair
    assert a["out"].second[1:] == [None, 5]
    assert type(a["batch"]) is Batch
    assert a["batch"].scale == 1.5
    assert a["given"] is bias
    assert a["flag"] is True
    assert int(a["count"]) == 3
    assert not a["count"].requires_grad
    assert same(a["out"].first, b["out"].first)
    (a["out"].first.sum() + a["batch"].x.sum()).backward()
    (b["out"].first.sum() + b["batch"].x.sum()).backward()
    assert_equal_gradients(ours, theirs)


@pytest.mark.integration
def test_python_numbers_are_constants_of_a_program() -> None:
    ours, theirs = wrapped(Nested())
    x, more = torch.randn(2, 3), {"bias": [torch.zeros(3)]}
    for scale in (0.5, 2.0):
        given = Batch(x, scale), more
        assert same(ours(*given)["out"].first, theirs(*given)["out"].first)
    assert len(ours.programs) == 2


@pytest.mark.integration
def test_tied_weights_get_the_sum_of_their_gradients() -> None:
    ours, theirs = wrapped(Tied())
    x = ids()
    for module in (ours, theirs):
        module(x, labels=x)["loss"].backward()
    assert_equal_gradients(ours, theirs)
    assert ours.out.weight is ours.embed.weight


@pytest.mark.integration
def test_gradients_of_a_result_that_was_not_expected() -> None:
    ours, theirs = wrapped(Tied())
    x = ids()
    for module in (ours, theirs):
        found = module(x, labels=x)
        (found["scores"].square().mean() + found["loss"]).backward()
    assert_equal_gradients(ours, theirs)


@pytest.mark.integration
def test_the_rate_of_a_dropout_and_the_momentum_of_a_norm_may_change_between_steps() -> None:
    ours, theirs = wrapped(Net())
    x = image()
    for module in (ours, theirs):
        module(x)
        module.norm.momentum = 0.5
        module(x)
        module.drop.p = 1.0  # all that reaches the last layer is zero
    assert same(ours.norm.running_mean, theirs.norm.running_mean)
    assert same(ours(x), theirs(x))
    ours.drop.p = 0.5
    assert not torch.equal(ours(x), ours(x))


class TwoHeads(nn.Module):
    """Two results of one trunk, and one that is not used by all losses."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.trunk(x))
        return {"first": self.first(h), "second": self.second(h), "hidden": h}


@pytest.mark.integration
@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("used", [("first",), ("second",), ("hidden",), ("first", "second")])
def test_heads_that_a_loss_does_not_use_get_no_gradient(
    used: tuple[str, ...], segments: int
) -> None:
    # with a gradient of zeros, the optimizer would apply momentum and weight decay to them
    ours, theirs = wrapped(TwoHeads(), segments=segments)
    x = torch.randn(3, 4)
    for module in (ours, theirs):
        found = module(x)
        sum(found[name].square().sum() for name in used).backward()
    assert_equal_gradients(ours, theirs)
    with pytest.raises(RuntimeError, match="to not have been used in the graph"):
        torch.autograd.grad(ours(x)["first"].sum(), ours.second.weight)


@pytest.mark.integration
def test_many_lengths_share_two_programs() -> None:
    ours, theirs = wrapped(Tied())
    for length in range(2, 14):
        x = ids(length=length)
        assert same(ours(x), theirs(x))
    assert len(ours.programs) == 2


@pytest.mark.integration
@pytest.mark.parametrize("segments", [1, 2, 4])
def test_segments_give_the_same_gradients(segments: int) -> None:
    ours, theirs = wrapped(Net(), segments=segments)
    x = image()
    for module in (ours, theirs):
        module(x).square().sum().backward()
    assert_equal_gradients(ours, theirs)


@pytest.mark.integration
def test_segments_hand_over_gradients_of_the_last_layers_first() -> None:
    ours, _ = wrapped(Net(), segments=2)
    order: list[str] = []
    for name, parameter in ours.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    ours(image()).sum().backward()
    assert order.index("head.weight") < order.index("conv.weight")


@pytest.mark.integration
def test_a_second_backward_needs_retain_graph_as_in_eager_mode() -> None:
    ours, theirs = wrapped(Net())
    x = image()
    for module in (ours, theirs):
        loss = module(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    assert_equal_gradients(ours, theirs)


def test_dropout_follows_the_seed_and_drops_the_share_it_should() -> None:
    class Drop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Any) -> Any:
            return nn.functional.dropout(x * self.scale, 0.25, self.training)

    ours, _ = wrapped(Drop())
    x = torch.ones(100, 100)
    torch.manual_seed(3)
    first, second = ours(x), ours(x)
    torch.manual_seed(3)
    assert torch.equal(first, ours(x))
    assert not torch.equal(first, second)
    assert abs(float((first == 0).float().mean()) - 0.25) < 0.02
    first.sum().backward()
    assert float(ours.scale.grad) == pytest.approx(float(first.detach().sum()), rel=1e-5)


@pytest.mark.integration
def test_frozen_parameters_get_no_gradient_and_may_be_unfrozen() -> None:
    ours, theirs = wrapped(Net())
    x = image()
    for frozen in (True, False):
        for module in (ours, theirs):
            module.zero_grad()
            module.conv.requires_grad_(not frozen)
            module(x).sum().backward()
        assert_equal_gradients(ours, theirs)


def test_plain_tensor_attributes_are_read_in_each_call() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.factor = torch.tensor(2.0)

        def forward(self, x: Any) -> Any:
            return self.linear(x) * self.factor

    ours, theirs = wrapped(Scaled())
    x = torch.randn(2, 3)
    for factor in (2.0, 5.0):
        ours.factor = theirs.factor = torch.tensor(factor)
        assert same(ours(x), theirs(x))
    assert len(ours.programs) == 1


class Doubled(torch.autograd.Function):
    """Twice its input, with a backward that a trace would lose."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return 3 * dy


class WithFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))

    def forward(self, x: Any) -> Any:
        return Doubled.apply(self.body(x))


def test_a_custom_function_runs_in_torch_and_its_submodules_on_graphs() -> None:
    torch.manual_seed(0)
    theirs = WithFunction()
    ours = Module(copy.deepcopy(theirs))
    x = torch.randn(2, 3)
    with pytest.warns(FallbackWarning, match="it calls Doubled, a torch.autograd.Function"):
        ours(x).sum().backward()
    theirs(x).sum().backward()
    assert_equal_gradients(ours, theirs)
    assert len(ours.programs) == 1
    assert list(ours.fallbacks) == [""]


def test_forbid_refuses_what_cannot_be_captured() -> None:
    ours = Module(WithFunction(), {"fallback": "forbid"})
    with pytest.raises(CannotCapture, match=r"cannot be captured[\s\S]*fallback=\"warn\""):
        ours(torch.randn(2, 3))


def test_a_wrong_call_raises_the_error_of_torch_and_is_not_remembered() -> None:
    torch.manual_seed(0)
    ours = Module(nn.Linear(3, 2), {"fallback": "quiet"})
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        ours(torch.randn(2, 4))
    ours(torch.randn(2, 3))
    assert not ours.fallbacks


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Module("model.onnx"), "takes a torch.nn.Module, not str"),  # type: ignore[arg-type]
        (lambda: Module(Module(nn.Linear(1, 1))), "wrapped already"),
        (lambda: Module(nn.DataParallel(nn.Linear(1, 1))), "DistributedDataParallel"),
        (lambda: Module(nn.Linear(1, 1), {"provider": "cuda"}), "provider"),
        (lambda: Module(nn.Linear(1, 1), {"segment": 3}), "segments"),
    ],
)
def test_wrong_modules_and_options_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError if "wrapped" in message else Exception, match=message):
        make()


def test_autocast_gives_the_types_of_eager_mode() -> None:
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    ours = Module(copy.deepcopy(theirs), {"fallback": "forbid"})
    x = torch.randn(4, 8)
    for module in (ours, theirs):
        with torch.autocast("cpu", torch.bfloat16):
            y = module(x)
        assert y.dtype == torch.bfloat16
        y.float().square().sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters()):
        assert a.grad.dtype == torch.float32
        assert same(a.grad, b.grad, 0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_batch_norm_of_a_half_precision_input_is_captured(dtype: torch.dtype) -> None:
    """On a CPU, torch's statistics of such a batch have 16 bits, ONNX' have 32."""
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))
    ours = Module(copy.deepcopy(theirs), {"fallback": "forbid", "provider": "torch"})
    for step in range(2):
        x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        for module in (ours, theirs):
            with torch.autocast("cpu", dtype):
                y = module(x)
            assert y.dtype == dtype
            y.float().square().mean().backward()
    for a, b in zip(ours.parameters(), theirs.parameters()):
        assert a.grad.dtype == torch.float32
        assert same(a.grad, b.grad, 0.02)
    for a, b in zip(ours.buffers(), theirs.buffers()):
        assert a.dtype == b.dtype and same(a.float(), b.float(), 1e-3)


@pytest.mark.integration
def test_saved_graphs_are_models_that_onnx_checks(tmp_path: Any) -> None:
    import onnx

    ours, _ = wrapped(Net(), save_onnx=tmp_path, onnx_prefix="net_")
    ours(image()).sum().backward()
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["net_0_backward_0.onnx", "net_0_captured.onnx", "net_0_forward.onnx"]
    onnx.checker.check_model(onnx.load(tmp_path / "net_0_captured.onnx"))
