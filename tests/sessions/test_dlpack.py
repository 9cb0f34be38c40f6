"""Tensors of any DLPack library in and out, on the device that they are on."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch

import onward
from onward.errors import FeedError, OptionError
from onward.providers.ort import ort_values
from onward.providers.torch import provider
from tests.models import mlp, sandwich

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
PROVIDERS = ["CPUExecutionProvider", "TorchExecutionProvider", "ReferenceExecutionProvider"]


class Foreign:
    """A tensor of another library: it speaks DLPack, and nothing else."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._tensor.shape)

    def __dlpack__(self, **settings: Any) -> Any:
        return self._tensor.__dlpack__(**settings)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


class Library:
    """Its array namespace."""

    @staticmethod
    def from_dlpack(tensor: Any) -> ArrayOfLibrary:
        return ArrayOfLibrary(torch.from_dlpack(tensor))  # type: ignore[attr-defined]


class ArrayOfLibrary(Foreign):
    def __array_namespace__(self) -> type[Library]:
        return Library

    def numpy(self) -> Any:
        return self._tensor.numpy()


def parsed(body: str, inputs: str = "float[3, 4] x", outputs: str = "float[3, 4] y") -> Any:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )


def refuse_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, nothing may be taken to the host, or become numpy's."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a tensor passed through the host")

    monkeypatch.setattr(provider, "to_numpy", refuse)
    monkeypatch.setattr(ort_values, "to_host", refuse)
    monkeypatch.setattr(torch.Tensor, "cpu", refuse)
    monkeypatch.setattr(torch.Tensor, "numpy", refuse)


@pytest.fixture
def no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_host(monkeypatch)


@pytest.mark.parametrize("name", PROVIDERS)
def test_torch_tensors_give_torch_tensors(name: str) -> None:
    session = onward.InferenceSession(mlp(), providers=[name])
    (wanted,) = session.run(["y"], {"x": X})
    (y,) = session.run_with_dlpack(["y"], {"x": torch.from_numpy(X)})
    assert isinstance(y, torch.Tensor)
    np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-6)


def test_a_class_derived_from_torchs_gives_torch_tensors() -> None:
    class Image(torch.Tensor):
        pass

    for name in PROVIDERS:
        session = onward.InferenceSession(mlp(), providers=[name])
        x = torch.from_numpy(X).as_subclass(Image)  # type: ignore[attr-defined]
        (y,) = session.run_with_dlpack(None, {"x": x})
        assert isinstance(y, torch.Tensor)


def test_every_output_is_given_in_order() -> None:
    model = parsed("y = Relu(x) z = Neg(x)", outputs="float[3, 4] y, float[3, 4] z")
    for name in PROVIDERS:
        session = onward.InferenceSession(model, providers=[name])
        y, z = session.run_with_dlpack(None, {"x": torch.from_numpy(X)})
        assert y.min() >= 0
        assert torch.equal(z, -torch.from_numpy(X))


@pytest.mark.usefixtures("no_numpy")
def test_results_of_torch_stay_where_they_were_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Tensor] = []
    run = provider.TorchExecutable.run

    def noting(executable: Any, *arguments: Any) -> Any:
        results = run(executable, *arguments)
        made.extend(results)
        return results

    monkeypatch.setattr(provider.TorchExecutable, "run", noting)
    session = onward.InferenceSession(mlp(), providers=["TorchExecutionProvider"])
    (y,) = session.run_with_dlpack(None, {"x": torch.from_numpy(X)})
    assert y.data_ptr() == made[0].data_ptr()


@pytest.mark.usefixtures("no_numpy")
def test_onnxruntime_reads_torch_memory_without_a_copy() -> None:
    session = onward.InferenceSession(mlp(), providers=["CPUExecutionProvider"])
    (y,) = session.run_with_dlpack(None, {"x": torch.from_numpy(X)})
    assert isinstance(y, torch.Tensor)
    kept = y.clone()
    session.run_with_dlpack(None, {"x": torch.zeros(3, 4)})
    assert torch.equal(y, kept)  # a later run does not write over it


def test_parts_on_two_engines_pass_tensors_on() -> None:
    session = onward.InferenceSession(
        sandwich(), providers=["CPUExecutionProvider", "TorchExecutionProvider"]
    )
    (y,) = session.run_with_dlpack(None, {"x": torch.full((2, 4), 2.0)})
    assert torch.equal(y, torch.full((2, 4), 8.0))


def test_a_result_is_an_ordinary_tensor() -> None:
    session = onward.InferenceSession(mlp(), providers=["TorchExecutionProvider"])
    (y,) = session.run_with_dlpack(None, {"x": torch.from_numpy(X)})
    assert not y.is_inference() and not y.requires_grad
    scale = torch.ones((), requires_grad=True)
    (y * scale).sum().backward()  # autograd saves it
    assert scale.grad is not None and scale.grad.item() == pytest.approx(float(y.sum()))
    y.zero_()


@pytest.mark.parametrize("name", PROVIDERS)
def test_feeds_that_require_grad_are_detached(name: str) -> None:
    session = onward.InferenceSession(mlp(), providers=[name])
    x = torch.from_numpy(X.copy()).requires_grad_()
    (y,) = session.run_with_dlpack(None, {"x": x * 1})
    assert not y.requires_grad
    np.testing.assert_allclose(y, session.run(None, {"x": X})[0], rtol=1e-6)


@pytest.mark.parametrize("name", PROVIDERS)
def test_results_have_the_feeds_library(name: str) -> None:
    session = onward.InferenceSession(mlp(), providers=[name])
    (y,) = session.run_with_dlpack(None, {"x": ArrayOfLibrary(torch.from_numpy(X))})
    assert isinstance(y, ArrayOfLibrary)
    np.testing.assert_allclose(y.numpy(), session.run(None, {"x": X})[0], rtol=1e-6)


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_library_without_from_dlpack_gets_dlpack_tensors(name: str) -> None:
    session = onward.InferenceSession(mlp(), providers=[name])
    (y,) = session.run_with_dlpack(None, {"x": Foreign(torch.from_numpy(X))})
    found = torch.from_dlpack(y)  # type: ignore[attr-defined]
    np.testing.assert_allclose(found, session.run(None, {"x": X})[0], rtol=1e-6)


@pytest.mark.parametrize("name", PROVIDERS)
def test_ort_values_give_ort_values_and_numpy_gives_numpy(name: str) -> None:
    session = onward.InferenceSession(mlp(), providers=[name])
    (wanted,) = session.run(None, {"x": X})
    (value,) = session.run_with_dlpack(None, {"x": onward.OrtValue.ortvalue_from_numpy(X)})
    assert isinstance(value, onward.OrtValue)
    np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-6)
    (array,) = session.run_with_dlpack(None, {"x": X})
    assert isinstance(array, np.ndarray)


TYPES = {
    "bool": (torch.tensor([True, False]), "z = Not(x) y = Not(z)"),
    "bfloat16": (torch.tensor([1.5, -2]).to(torch.bfloat16), "y = Identity(x)"),
    "float16": (torch.tensor([1.5, -2]).half(), "y = Identity(x)"),
    "int64": (torch.tensor([3, -2]), "y = Abs(x) "),
}


@pytest.mark.parametrize("name", PROVIDERS[:2])
@pytest.mark.parametrize("kind", TYPES)
def test_types_are_kept(kind: str, name: str) -> None:
    x, body = TYPES[kind]
    session = onward.InferenceSession(
        parsed(body, f"{kind}[2] x", f"{kind}[2] y"), providers=[name]
    )
    (y,) = session.run_with_dlpack(None, {"x": x})
    assert y.dtype == x.dtype
    assert y.float().tolist() == [abs(n) if kind == "int64" else n for n in x.float().tolist()]


def test_float8_is_kept_by_torch() -> None:
    model = parsed("y = Identity(x)", "float8e4m3fn[2] x", "float8e4m3fn[2] y")
    session = onward.InferenceSession(model, providers=["TorchExecutionProvider"])
    (y,) = session.run_with_dlpack(None, {"x": torch.tensor([1.5, -2]).to(torch.float8_e4m3fn)})
    assert y.dtype == torch.float8_e4m3fn and y.float().tolist() == [1.5, -2]


def test_bool_results_stay_bool() -> None:
    model = parsed("y = Not(x)", "bool[2] x", "bool[2] y")
    session = onward.InferenceSession(model, providers=["CPUExecutionProvider"])
    (y,) = session.run_with_dlpack(None, {"x": ArrayOfLibrary(torch.tensor([True, False]))})
    assert y.numpy().dtype == np.bool_ and y.numpy().tolist() == [False, True]


@pytest.mark.parametrize("name", PROVIDERS)
def test_sequences_are_lists_of_tensors(name: str) -> None:
    one = "c = Constant<value_int=2>() y = SplitToSequence<axis=1>(x, c)"
    session = onward.InferenceSession(parsed(one, outputs="seq(float[]) y"), providers=[name])
    (pieces,) = session.run_with_dlpack(None, {"x": torch.from_numpy(X)})
    assert [type(piece) for piece in pieces] == [torch.Tensor] * 2
    assert torch.equal(torch.cat(pieces, 1), torch.from_numpy(X))


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_result_is_never_a_feeds_memory(name: str) -> None:
    session = onward.InferenceSession(parsed("y = Identity(x)"), providers=[name])
    x = torch.from_numpy(X.copy())
    (y,) = session.run_with_dlpack(None, {"x": x})
    x.zero_()
    np.testing.assert_array_equal(y, X)


def test_strided_feeds_are_read_in_order() -> None:
    for name in PROVIDERS:
        session = onward.InferenceSession(mlp(), providers=[name])
        x = torch.from_numpy(np.ascontiguousarray(X.T)).T
        (y,) = session.run_with_dlpack(None, {"x": x})
        np.testing.assert_allclose(y, session.run(None, {"x": X})[0], rtol=1e-6)


@pytest.mark.parametrize("name", PROVIDERS)
def test_wrong_feeds_and_names_are_named(name: str) -> None:
    session = onward.InferenceSession(mlp(), providers=[name])
    x = torch.from_numpy(X)
    with pytest.raises(FeedError, match=r"input 'x' takes shape .*, but was given \(3, 5\)"):
        session.run_with_dlpack(None, {"x": torch.zeros(3, 5)})
    with pytest.raises(FeedError, match="no input 'z'; the model takes 'x'"):
        session.run_with_dlpack(None, {"z": x})
    with pytest.raises(KeyError, match="no output 'z'; the model gives 'y'"):
        session.run_with_dlpack(["z"], {"x": x})
    with pytest.raises(FeedError, match="feeds must be a dict of tensors"):
        session.run_with_dlpack(None, x)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PROVIDERS)
def test_terminate_ends_a_run_with_dlpack(name: str) -> None:
    session = onward.InferenceSession(mlp(), onward.SessionOptions(log_severity_level=4), [name])
    run_options = onward.RunOptions()
    run_options.terminate = True
    with pytest.raises(onward.OnwardError, match=r"ended by RunOptions\.terminate"):
        session.run_with_dlpack(None, {"x": torch.from_numpy(X)}, run_options)


def test_an_operator_that_only_onnxruntime_fails_at_moves() -> None:
    body = "axes = Constant<value_ints=[0]>() y = ReduceMax<keepdims=0>(x, axes)"
    session = onward.InferenceSession(
        parsed(body, "bool[n, 2] x", "bool[2] y"), onward.SessionOptions(log_severity_level=4)
    )
    (y,) = session.run_with_dlpack(None, {"x": torch.zeros(0, 2, dtype=torch.bool)})
    assert y.tolist() == [False, False]
    assert session.get_providers() == ["TorchExecutionProvider"]


def test_an_isolated_model_takes_and_gives_tensors() -> None:
    session = onward.InferenceSession(mlp(), onward.SessionOptions(isolated=True))
    (y,) = session.run_with_dlpack(None, {"x": torch.from_numpy(X)})
    assert isinstance(y, torch.Tensor)
    np.testing.assert_allclose(y, session.run(None, {"x": X})[0], rtol=1e-6)


# -- bindings --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_numpy")
def test_an_output_bound_to_a_device_stays_on_it() -> None:
    session = onward.InferenceSession(mlp(), providers=["TorchExecutionProvider"])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", torch.from_numpy(X))
    binding.bind_output("y", "cuda")
    session.run_with_iobinding(binding)
    (y,) = binding.get_outputs()
    assert isinstance(y, torch.Tensor) and y.shape[0] == 3


def test_an_output_is_written_into_a_torch_tensor() -> None:
    session = onward.InferenceSession(mlp(), providers=["TorchExecutionProvider"])
    (wanted,) = session.run(None, {"x": X})
    target = torch.zeros(wanted.shape, requires_grad=True)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", torch.from_numpy(X))
    binding.bind_ortvalue_output("y", target)
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(target.detach(), wanted, rtol=1e-6)
    assert binding.get_outputs()[0] is target
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], wanted, rtol=1e-6)
    binding.bind_output("y")  # bound to the host again
    session.run_with_iobinding(binding)
    assert isinstance(binding.get_outputs()[0], onward.OrtValue)


def test_an_output_is_not_written_into_what_does_not_fit() -> None:
    session = onward.InferenceSession(mlp(), providers=["TorchExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_output("y", torch.zeros(7))
    with pytest.raises(FeedError, match=r"output 'y' is torch.float32 \(3, .*bound to .* \(7,\)"):
        session.run_with_iobinding(binding)
    with pytest.raises(OptionError, match="cannot be written into a list\nbind an OrtValue or a"):
        binding.bind_ortvalue_output("y", [0.0])


# -- tensors on the host ---------------------------------------------------------------------------


def test_torch_bfloat16_becomes_numpy_bfloat16() -> None:
    found = ort_values.to_host(torch.tensor([1.5, -2]).to(torch.bfloat16))
    assert found.dtype == ml_dtypes.bfloat16 and found.tolist() == [1.5, -2]


def test_onnxruntime_results_stay_on_the_feeds_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OnCuda:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    assert ort_values.device_of([X, torch.zeros(1)]) == "cpu"
    monkeypatch.setattr(ort_values, "_reads_devices", lambda: False)
    assert ort_values.device_of([OnCuda()]) == "cpu"
    monkeypatch.setattr(ort_values, "_reads_devices", lambda: True)
    assert ort_values.device_of([X, OnCuda()]) == "cuda"


def test_buffers_that_a_later_run_overwrites_are_copied() -> None:
    ran = provider.TorchExecutable(lambda x: (x,), torch.device("cpu"), reuses_outputs=True)
    result = torch.ones(2)
    copied = ran.to_dlpack(result)
    assert copied.data_ptr() != result.data_ptr() and torch.equal(copied, result)


# -- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty", "ignore:`torch.jit")  # torch's own
@pytest.mark.parametrize(
    "name, settings",
    [
        ("TorchExecutionProvider", {}),
        ("InductorExecutionProvider", {}),
        ("InductorExecutionProvider", {"mode": "reduce-overhead"}),
    ],
)
def test_tensors_on_a_gpu_stay_there(
    name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parsed("a = Neg(x) y = Exp(a)")
    session = onward.InferenceSession(model, providers=[(name, {"device": "cuda", **settings})])
    feeds = [torch.full((3, 4), float(number), device="cuda") for number in range(4)]
    for feed in feeds:  # compiled, and captured
        session.run_with_dlpack(None, {"x": feed})
    with monkeypatch.context() as patched:
        refuse_host(patched)
        results = [session.run_with_dlpack(None, {"x": feed})[0] for feed in feeds]
    for feed, y in zip(feeds, results, strict=True):  # a later run does not write over an earlier
        assert y.is_cuda
        torch.testing.assert_close(y, torch.exp(-feed))


@pytest.mark.gpu
def test_feeds_on_the_host_are_moved_to_the_gpu_and_outputs_are_bound_there() -> None:
    model = parsed("y = Neg(x)")
    session = onward.InferenceSession(
        model, providers=[("TorchExecutionProvider", {"device": "cuda"})]
    )
    (y,) = session.run_with_dlpack(None, {"x": torch.from_numpy(X)})
    assert y.is_cuda
    target = torch.zeros(3, 4, device="cuda")
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", torch.from_numpy(X).cuda())
    binding.bind_ortvalue_output("y", target)
    session.run_with_iobinding(binding)
    torch.testing.assert_close(target, y)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], -X)
