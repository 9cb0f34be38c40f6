"""FP16_Optimizer: which optimizers it changes, and that their results stay the same."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from onward.pytorch.optim.fp16_optimizer import FP16_Optimizer
from onward.pytorch.optim.gradient_norms import clip_by_norm, has_overflow, total_norm

INF, NAN = math.inf, math.nan


def with_gradient(*numbers: float, dtype: torch.dtype = torch.float32, **marks: Any) -> Tensor:
    p = torch.nn.Parameter(torch.zeros(len(numbers), dtype=dtype))
    p.grad = torch.tensor(numbers, dtype=dtype)
    for name, value in marks.items():
        setattr(p, name, value)
    return p


def named(module: str, name: str) -> type:
    """A class of this full name, without methods."""
    return type(name, (SimpleNamespace,), {"__module__": module})


def deepspeed(name: str = "stage_1_and_2.DeepSpeedZeroOptimizer", **attributes: Any) -> Any:
    module, _, kind = f"deepspeed.runtime.zero.{name}".rpartition(".")

    def kept(**keywords: Any) -> None: ...

    methods = ["get_grad_norm_direct", "has_overflow_serial"]
    methods += ["has_overflow_partitioned_grads_serial", "_model_parallel_all_reduce"]
    attributes = {"model_parallel_rank": 0, "dp_process_group": None, **attributes}
    return named(module, kind)(**dict.fromkeys(methods, kept), **attributes)


@pytest.fixture
def deepspeed_0_9() -> Iterator[None]:
    sys.modules["deepspeed"] = ModuleType("deepspeed")
    sys.modules["deepspeed"].__version__ = "0.9.1"  # type: ignore[attr-defined]
    yield
    del sys.modules["deepspeed"]


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [([1.0, -2.0], False), ([1.0, NAN], True), ([INF, 0.0], True), ([-INF], True), ([], False)],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_overflow_is_found(numbers: list[float], wrong: bool, dtype: torch.dtype) -> None:
    largest = torch.full((3,), torch.finfo(dtype).max, dtype=dtype)
    first = [] if dtype == torch.float64 else [largest]
    assert has_overflow([*first, None, torch.tensor(numbers, dtype=dtype)]) == wrong
    assert not has_overflow([])


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, INF])
def test_norms_are_of_one_vector(norm_type: float) -> None:
    tensors = [torch.randn(3, 4), torch.randn(5).double(), torch.randn(2).half(), torch.zeros(0)]
    whole = torch.cat([t.double().flatten() for t in tensors])
    wanted = torch.linalg.vector_norm(whole, norm_type)
    torch.testing.assert_close(total_norm(tensors, norm_type).double(), wanted)


def test_a_norm_of_float16_does_not_overflow() -> None:
    assert total_norm([torch.full((100,), 6e4, dtype=torch.float16)]).item() > 5e5


def test_clipping_keeps_small_gradients() -> None:
    gradient = torch.tensor([3.0, 4.0])
    clip_by_norm([gradient], 5.0, 10.0)
    assert gradient.tolist() == [3.0, 4.0]
    clip_by_norm([gradient], 5.0, 1.0)
    torch.testing.assert_close(gradient, torch.tensor([0.6, 0.8]))


@pytest.mark.usefixtures("deepspeed_0_9")
@pytest.mark.parametrize(
    "name", ["stage2.FP16_DeepSpeedZeroOptimizer", "stage_1_and_2.DeepSpeedZeroOptimizer"]
)
def test_deepspeed_optimizers_are_changed(name: str) -> None:
    optimizer = deepspeed(name, bit16_groups=[0, 1])
    assert FP16_Optimizer(optimizer) is optimizer
    params = [with_gradient(3.0, 4.0), with_gradient(12.0)]
    gradients = [p.grad for p in params]
    assert optimizer.get_grad_norm_direct(gradients, params) == pytest.approx(13.0)
    assert optimizer.get_grad_norm_direct(gradients, params, norm_type=INF) == 12.0
    assert not optimizer.has_overflow_serial(params)
    assert optimizer.has_overflow_serial([*params, with_gradient(NAN)])
    assert optimizer.has_overflow_serial([torch.tensor([INF])], is_grad_list=True)
    optimizer.averaged_gradients = {0: [None, torch.ones(2)], 1: [torch.tensor([INF])]}
    assert optimizer.has_overflow_partitioned_grads_serial()
    bad = [with_gradient(INF)]
    assert optimizer.get_grad_norm_direct([p.grad for p in bad], bad) == -1.0


@pytest.mark.usefixtures("deepspeed_0_9")
def test_deepspeed_counts_replicas_once() -> None:
    optimizer = FP16_Optimizer(deepspeed(model_parallel_rank=1))
    params = [
        with_gradient(3.0, model_parallel=True),
        with_gradient(4.0, model_parallel=True),
        with_gradient(100.0),
        with_gradient(100.0, model_parallel=True, ds_pipe_replicated=True),
    ]
    norm = optimizer.get_grad_norm_direct([p.grad for p in params], params)
    assert norm == pytest.approx(5.0)


@pytest.mark.usefixtures("deepspeed_0_9")
def test_accelerates_wrapper_is_looked_into() -> None:
    wrapped = deepspeed()
    wrapper = named("accelerate.utils.deepspeed", "DeepSpeedOptimizerWrapper")(optimizer=wrapped)
    assert FP16_Optimizer(wrapper) is wrapper
    assert wrapped.has_overflow_serial([with_gradient(NAN)]) is True


def megatron(*params: Tensor) -> Any:
    inner = SimpleNamespace(param_groups=[{"params": list(params)}])
    return named("megatron.fp16.fp16", "FP16_Optimizer")(
        optimizer=inner,
        fp16_groups=[list(params)],
        fp32_from_fp32_groups=[],
        overflow=False,
        _check_overflow=print,
        clip_master_grads=print,
    )


def test_megatrons_optimizer_is_changed() -> None:
    params = [with_gradient(3.0), with_gradient(4.0)]
    optimizer = FP16_Optimizer(megatron(*params))
    assert optimizer._check_overflow() is False
    assert optimizer.clip_master_grads(1.0) == pytest.approx(5.0)
    assert [p.grad.item() for p in params] == pytest.approx([0.6, 0.8])  # type: ignore[union-attr]
    params[0].grad = torch.tensor([NAN])
    assert optimizer._check_overflow() is True
    assert optimizer.clip_master_grads(1.0) == -1


def test_apexs_optimizers_are_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    half, master = with_gradient(8.0, 4.0, dtype=torch.float16), with_gradient(0.0, 0.0)
    master.grad = None
    others: list[Any] = []
    process = ModuleType("apex.amp._process_optimizer")
    process.post_backward_models_are_masters = lambda *given: others.append(given)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "apex.amp._process_optimizer", process)
    optimizer: Any = torch.optim.SGD([master], lr=1.0)
    optimizer._amp_lazy_init = lambda: None
    optimizer._post_amp_backward = print
    optimizer._amp_stash = SimpleNamespace(
        all_fp16_params=[half],
        all_fp32_from_fp16_params=[master],
        all_fp32_from_fp32_params=[],
        all_fp32_from_fp32_grad_stash=[],
    )
    overflow = torch.zeros(1, dtype=torch.int)
    scaler = SimpleNamespace(loss_scale=lambda: 4.0, _overflow_buf=overflow)
    FP16_Optimizer(optimizer)
    optimizer._post_amp_backward(scaler)
    assert master.grad.tolist() == [2.0, 1.0] and overflow.item() == 0 and len(others) == 1  # type: ignore[attr-defined]
    half.grad = torch.tensor([INF, 0.0], dtype=torch.float16)
    optimizer._post_amp_backward(scaler)
    assert overflow.item() == 1
    optimizer.zero_grad()
    assert half.grad is None and master.grad is None


@pytest.mark.parametrize(
    ("optimizer", "law"),
    [
        (torch.optim.SGD([torch.zeros(1, requires_grad=True)]), r"use torch\.amp\.GradScaler"),
        (deepspeed(), "DeepSpeed's version is unknown, supported are"),
        (named("megatron.fp16.fp16", "FP16_Optimizer")(), "has no _check_overflow"),
    ],
    ids=["torch", "DeepSpeed's version", "Megatron's methods"],
)
def test_other_optimizers_stay_with_a_warning(optimizer: Any, law: str) -> None:
    before = dict(vars(optimizer))
    with pytest.warns(UserWarning, match=law):
        assert FP16_Optimizer(optimizer) is optimizer
    assert vars(optimizer) == before
