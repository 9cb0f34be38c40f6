"""The architectures: published parameter counts, forward runs, seeds, unknown names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import onward
from onward.errors import OptionError
from onward.runner.architectures.architecture_options import options_of
from onward.runner.architectures.new_model import ARCHITECTURES, count_parameters, new_model
from tests.runner.architectures.small_models import SMALL, make_feeds

IMAGENET = {"image": (3, 224, 224), "classes": 1000}

PUBLISHED: list[tuple[str, dict[str, Any], int]] = [
    ("resnet", {"depth": 18, **IMAGENET}, 11_689_512),
    ("resnet", {"depth": 50, **IMAGENET}, 25_557_032),
    ("resnet", {"depth": 18}, 11_173_962),  # with the stem for CIFAR
    ("squeezenet", IMAGENET, 1_235_496),
    ("mobilenet", IMAGENET, 3_504_872),
    ("vit", {"size": "base", "patch": 16, **IMAGENET}, 86_567_656),
    ("bert", {"size": "base"}, 109_483_778),
    ("bert", {"size": "base", "head": "words"}, 109_514_298),
    ("gpt2", {"size": "small"}, 124_439_808),
]


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "count"), [(34, 21_797_672), (101, 44_549_160)])
def test_other_depths_have_their_published_counts(depth: int, count: int) -> None:
    assert count_parameters(new_model("resnet", depth=depth, **IMAGENET)) == count


@pytest.mark.parametrize(("name", "options", "count"), PUBLISHED)
def test_parameter_counts_are_the_published_ones(
    name: str, options: dict[str, Any], count: int
) -> None:
    assert count_parameters(new_model(name, **options)) == count


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_page_lists_every_architecture_with_its_size_and_options(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs/new.md").read_text("utf-8")
    section = page.partition("## Architectures")[2].partition("\n## ")[0]
    [row] = [line for line in section.splitlines() if line.startswith(f"| `{name}` |")]
    _, _, count, *_, options, _ = (cell.strip() for cell in row.split("|"))
    assert count == f"{count_parameters(new_model(name)):,}"
    assert options == " ".join(f"`{option}`" for option in options_of(ARCHITECTURES[name]))


def test_every_architecture_is_tested() -> None:
    assert set(SMALL) == set(ARCHITECTURES)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_model_is_valid_and_runs_with_any_batch_size(name: str) -> None:
    model = new_model(name, **SMALL[name])
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    [output] = model.graph.outputs
    for batch, time in ((1, 4), (3, 6)):
        [scores] = session.run(None, make_feeds(model, batch, time))
        sizes = {"batch": batch, "time": time}
        assert list(scores.shape) == [sizes.get(str(size), size) for size in output.shape or ()]
        assert np.isfinite(scores).all()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_weights_depend_only_on_the_seed(name: str) -> None:
    def draw(seed: int) -> dict[str, Any]:
        model = new_model(name, seed, **SMALL[name])
        first = list(model.graph.initializers.items())[:6]  # each is drawn by itself
        tensors = [(key, value.const_value) for key, value in first]
        return {key: tensor.numpy() for key, tensor in tensors if tensor is not None}

    first, again, other = draw(0), draw(0), draw(1)
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert any(not np.array_equal(first[key], other[key]) for key in first)


def test_weights_of_different_names_are_different() -> None:
    weights = new_model("gpt2", **SMALL["gpt2"] | {"layers": 2}).graph.initializers
    first, second = (weights[f"h.{i}.mlp.c_fc.weight"].const_value for i in (0, 1))
    assert first is not None and second is not None
    assert not np.array_equal(first.numpy(), second.numpy())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet", {"layer1.0.conv1.weight", "layer2.0.downsample.1.running_mean", "fc.bias"}),
        ("squeezenet", {"features.3.squeeze.weight", "classifier.1.bias"}),
        ("mobilenet", {"features.1.conv.1.weight", "features.18.0.weight", "classifier.1.weight"}),
        ("gpt2", {"wte.weight", "wpe.weight", "h.0.attn.c_attn.weight", "ln_f.bias"}),
        ("bert", {"bert.encoder.layer.0.attention.self.query.weight", "bert.pooler.dense.bias"}),
        ("vit", {"cls_token", "pos_embed", "blocks.0.attn.qkv.weight", "head.weight"}),
        ("transformer", {"encoder.layers.0.self_attn.in_proj_weight"}),
    ],
)
def test_parameters_have_the_names_of_known_checkpoints(name: str, expected: set[str]) -> None:
    assert expected <= set(new_model(name, **SMALL[name]).graph.initializers)


def test_batch_normalization_has_torch_settings() -> None:
    model = new_model("resnet", **SMALL["resnet"])
    node = next(node for node in model.graph if node.op_type == "BatchNormalization")
    settings = [node.attributes[name].as_float() for name in ("epsilon", "momentum")]
    assert settings == pytest.approx([1e-5, 0.9])


@pytest.mark.parametrize(("name", "dropouts"), [("squeezenet", 1), ("mobilenet", 1), ("gpt2", 4)])
def test_dropout_is_where_the_paper_has_it(name: str, dropouts: int) -> None:
    model = new_model(name, **SMALL[name])
    assert [node.op_type for node in model.graph].count("Dropout") == dropouts


def test_large_images_get_the_stem_of_the_paper() -> None:
    model = new_model("resnet", image=(3, 64, 64))
    shape = model.graph.initializers["conv1.weight"].shape
    assert shape is not None and list(shape) == [64, 3, 7, 7]


def test_unknown_architecture_has_a_suggestion() -> None:
    with pytest.raises(OptionError, match=r"no architecture 'resnt'\ndid you mean 'resnet'"):
        onward.new_model("resnt")
    with pytest.raises(OptionError, match="resnet: seed must be a whole number, at least 0"):
        new_model("resnet", seed=-1)
