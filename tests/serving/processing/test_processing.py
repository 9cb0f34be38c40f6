"""Pre- and postprocessing: Python functions, images, tokenizers, and what training stored."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import FeedError, OptionError
from onward.runner.data.class_labels import OneHotColumn
from onward.runner.data.image_pixels import ImagePixels
from onward.runner.data.number_scaling import Standardize
from onward.runner.plan.feed_source import FeedSource
from onward.runner.plan.preprocessing import METADATA_KEY, Preprocessing
from onward.serving.batching.batch_check import LARGE, random_feeds
from onward.serving.example_request import example_arrays, example_command
from onward.serving.instance import Instance
from onward.serving.processing.processing import add_processing, load_function
from onward.serving.requests import Array, TensorSpec
from onward.serving.settings import ModelSettings


class Recording:
    """An instance that keeps its feeds, and answers fixed scores for each row."""

    def __init__(self, inputs: list[TensorSpec], scores: list[float], name: str = "scores") -> None:
        self.inputs = inputs
        self.outputs = [TensorSpec(name, "FP32", (-1, len(scores)))]
        self.feeds: dict[str, Array] = {}
        self.scores, self.is_closed = scores, False

    def run(self, feeds: Any, outputs: Any = None) -> dict[str, Array]:
        self.feeds = dict(feeds)
        rows = len(next(iter(feeds.values())))
        return {self.outputs[0].name: np.array([self.scores] * rows, np.float32)}

    def close(self) -> None:
        self.is_closed = True


PICTURES = [TensorSpec("pixels", "FP32", (-1, 3, 4, 4))]


def processed(
    instance: Instance, folder: Path, metadata: dict[str, str] | None = None, **settings: Any
) -> Instance:
    [found], _ = add_processing([instance], ModelSettings(**settings), folder, metadata or {})
    return found


def objects(*items: Any) -> Array:
    array = np.empty(len(items), object)
    array[:] = items
    return array


def picture(colour: tuple[int, int, int], size: tuple[int, int] = (8, 6)) -> bytes:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


def test_a_plain_model_stays_as_it_is(tmp_path: Path) -> None:
    instance = Recording(PICTURES, [1.0])
    assert processed(instance, tmp_path) is instance
    assert processed(instance, tmp_path, preprocess="none", postprocess="none") is instance


FUNCTIONS = """
from typing import Annotated
import numpy as np

def before(text: Annotated[np.ndarray, "BYTES", (-1,)]):
    return {"x": np.array([[len(t), 1] for t in text], np.float32)}

def after(scores, threshold: float = 0.5):
    return {"good": scores[:, 0] > threshold}

def fails(scores):
    raise ValueError("no")
"""


def test_python_functions_next_to_the_model(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(FUNCTIONS)
    instance = Recording([TensorSpec("x", "FP32", (-1, 2))], [0.9, 0.1])
    found = processed(instance, tmp_path, preprocess="steps:before", postprocess="steps:after")
    assert list(found.inputs) == [TensorSpec("text", "BYTES", (-1,))]
    assert list(found.outputs) == [TensorSpec("good", "BOOL", (-1,))]
    result = found.run({"text": objects("abc", "")})
    assert result["good"].tolist() == [True, True]
    assert instance.feeds["x"].tolist() == [[3, 1], [0, 1]]
    found.close()
    assert instance.is_closed


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("steps", "'steps' is not a function: write module:function"),
        ("nowhere_to_be_found:f", "nowhere_to_be_found cannot be imported: ModuleNotFoundError"),
        ("steps:missing", "module 'steps' has no function 'missing'"),
        ("broken:f", "broken cannot be imported: SyntaxError"),
    ],
)
def test_functions_that_cannot_be_loaded(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "steps.py").write_text(FUNCTIONS)
    (tmp_path / "broken.py").write_text("def f(:")
    with pytest.raises(OptionError, match=error):
        load_function(text, tmp_path)


def test_a_function_that_fails_on_zeros_is_refused(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(FUNCTIONS)
    with pytest.raises(OptionError, match=r"trial call with zeros failed: .* ValueError: no"):
        processed(Recording(PICTURES, [1.0]), tmp_path, postprocess="steps:fails")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_images_are_decoded_resized_and_scaled(tmp_path: Path, layout: str) -> None:
    shape = (-1, 3, 4, 5) if layout == "NCHW" else (-1, 4, 5, 3)
    instance = Recording([TensorSpec("pixels", "FP32", shape)], [0.1, 0.7, 0.2])
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.25, 0.5]})
    )
    (tmp_path / "labels.txt").write_text("cat\ndog\nowl\n")
    found = processed(
        instance, tmp_path, preprocess="image", postprocess="top_k:2",
        labels={"scores": "labels.txt"},
    )  # fmt: skip
    [spec] = found.inputs
    assert (spec.name, spec.datatype, spec.shape, spec.is_binary) == ("image", "BYTES", (-1,), True)
    result = found.run({"image": objects(picture((255, 255, 0)), picture((0, 0, 0)))})
    assert result["labels"].tolist() == [["dog", "owl"]] * 2
    np.testing.assert_allclose(result["scores"], [[0.7, 0.2]] * 2)
    pixels = instance.feeds["pixels"]
    assert pixels.shape == (2, *shape[1:]) and pixels.dtype == np.float32
    colour = pixels[0, :, 0, 0] if layout == "NCHW" else pixels[0, 0, 0]
    np.testing.assert_allclose(colour, [1, 2, -1], atol=1e-6)
    with pytest.raises(FeedError, match="'image' is not an image that can be read: its bytes are"):
        found.run({"image": objects(b"\xff\x00")})
    assert found.run({"image": objects("warming up")})["labels"].shape == (1, 2)


SQUARE = {"height": 4, "width": 4}


@pytest.mark.parametrize(
    ("record", "before", "filter"),
    [
        ({"size": SQUARE}, (4, 4), 2),
        ({"size": 4, "resample": 3}, (4, 4), 3),
        # the sides of the picture are 20 and 10
        ({"size": {"shortest_edge": 6}, "do_center_crop": True, "crop_size": SQUARE}, (12, 6), 2),
        ({"size": 6, "do_center_crop": True, "crop_size": 4, "resample": 3}, (12, 6), 3),
        ({"size": {"height": 6, "width": 8}, "do_center_crop": True, "crop_size": 4}, (8, 6), 2),
        (
            {"size": 6, "do_center_crop": True, "crop_size": 4,
             "feature_extractor_type": "DeiTFeatureExtractor"},
            (6, 6), 2,
        ),
        ({"do_resize": False, "size": 6, "do_center_crop": True, "crop_size": 4}, (20, 10), 2),
        ({"size": {"shortest_edge": 4}, "crop_pct": 0.5}, (16, 8), 2),  # ConvNeXt
        ({"size": {"shortest_edge": 4}}, (4, 4), 2),  # the model's size is fixed
    ],
)  # fmt: skip
def test_images_are_resized_and_cropped_as_the_file_says(
    tmp_path: Path, record: dict[str, Any], before: tuple[int, int], filter: int
) -> None:
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    original = image.fromarray(random.integers(0, 256, (10, 20, 3)).astype(np.uint8))
    file = io.BytesIO()
    original.save(file, "PNG")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(record))
    model = Recording(PICTURES, [1.0])
    processed(model, tmp_path, preprocess="image").run({"image": objects(file.getvalue())})
    resized = original.resize(before, filter)
    left, top = (before[0] - 4) // 2, (before[1] - 4) // 2
    expected = np.asarray(resized.crop((left, top, left + 4, top + 4)), np.float32) / 255
    np.testing.assert_allclose(model.feeds["pixels"][0], expected.transpose(2, 0, 1), atol=1e-6)


def test_channels_are_flipped_as_the_file_says(tmp_path: Path) -> None:
    record = {"size": SQUARE, "do_flip_channel_order": True, "image_mean": [1, 1, 1]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(record))
    model = Recording(PICTURES, [1.0])
    processed(model, tmp_path, preprocess="image").run({"image": objects(picture((255, 0, 51)))})
    np.testing.assert_allclose(model.feeds["pixels"][0, :, 0, 0], [0.2, 0, 1], atol=1e-6)


@pytest.mark.parametrize(
    ("record", "size", "error"),
    [
        ({"size": {"shortest_edge": 6}}, -1, "makes images of different sizes"),
        ({"size": 6, "do_center_crop": True, "crop_size": 5}, 4, "of 5 x 5, but .* takes 4 x 4"),
    ],
)
def test_image_sizes_that_do_not_fit_are_refused(
    tmp_path: Path, record: dict[str, Any], size: int, error: str
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(record))
    model = Recording([TensorSpec("pixels", "FP32", (-1, 3, size, size))], [1.0])
    with pytest.raises(OptionError, match=error):
        processed(model, tmp_path, preprocess="image")


def test_no_images_are_an_empty_batch(tmp_path: Path) -> None:
    model = Recording(PICTURES, [1.0])
    processed(model, tmp_path, preprocess="image").run({"image": objects()})
    assert model.feeds["pixels"].shape == (0, 3, 4, 4)


def test_image_processing_needs_an_input_of_images(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="one input of 4 axes"):
        processed(
            Recording([TensorSpec("x", "FP32", (-1, 3))], [1.0]), tmp_path, preprocess="image"
        )
    (tmp_path / "preprocessor_config.json").write_text("[")
    with pytest.raises(OptionError, match=r"preprocessor_config\.json cannot be read"):
        processed(Recording(PICTURES, [1.0]), tmp_path, preprocess="image")


@pytest.mark.parametrize("postprocess", ["top_k:2", "softmax:2"])
def test_no_rows_have_no_best_classes(tmp_path: Path, postprocess: str) -> None:
    model = Recording([TensorSpec("x", "FP32", (-1, 3))], [1.0, 2.0, 3.0])
    model.run = lambda feeds, outputs=None: {"scores": np.zeros((0, 3), np.float32)}  # type: ignore[method-assign]
    found = processed(model, tmp_path, postprocess=postprocess).run({"x": np.zeros((0, 3))})
    assert found["labels"].shape == found["scores"].shape == (0, 2)


def test_softmax_turns_scores_into_probabilities(tmp_path: Path) -> None:
    found = processed(Recording(PICTURES, [0.0, np.log(3)]), tmp_path, postprocess="softmax")
    result = found.run({"pixels": np.zeros((1, 3, 4, 4), np.float32)})
    assert result["labels"].tolist() == [["1", "0"]]
    np.testing.assert_allclose(result["scores"], [[0.75, 0.25]], rtol=1e-6)


@pytest.mark.parametrize("length", [-1, 4])
def test_a_tokenizer_makes_ids_and_masks(tmp_path: Path, length: int) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "hello": 2, "world": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    names = ("input_ids", "attention_mask")
    instance = Recording([TensorSpec(name, "INT64", (-1, length)) for name in names], [1.0])
    found = processed(instance, tmp_path, preprocess="tokenizer")
    found.run({"text": objects("hello world there", "hello")})
    pad = [0] if length == 4 else []
    assert instance.feeds["input_ids"].tolist() == [[2, 3, 1, *pad], [2, 0, 0, *pad]]
    assert instance.feeds["attention_mask"].tolist() == [[1, 1, 1, *pad], [1, 0, 0, *pad]]
    assert instance.feeds["input_ids"].dtype == np.int64
    found.run({"text": objects()})
    assert instance.feeds["input_ids"].shape == (0, 4 if length == 4 else 0)


def test_a_tokenizers_own_padding_token_fills_a_fixed_length(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"hello": 0, "<pad>": 1}, "hello"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_padding(pad_id=1, pad_token="<pad>")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    instance = Recording([TensorSpec("input_ids", "INT64", (-1, 3))], [1.0])
    processed(instance, tmp_path, preprocess="tokenizer").run({"text": objects("hello")})
    assert instance.feeds["input_ids"].tolist() == [[0, 1, 1]]


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="but the model takes 'pixels'"):
        processed(Recording(PICTURES, [1.0]), tmp_path, preprocess="tokenizer")
    tokens = Recording([TensorSpec("input_ids", "INT64", (-1, -1))], [1.0])
    with pytest.raises(OptionError, match=r"there is no .*tokenizer\.json"):
        processed(tokens, tmp_path, preprocess="tokenizer")
    (tmp_path / "tokenizer.json").write_text("?")
    with pytest.raises(OptionError, match=r"tokenizer\.json cannot be read"):
        processed(tokens, tmp_path, preprocess="tokenizer")


def test_stored_images_answer_labels_and_scores(tmp_path: Path) -> None:
    pixels = ImagePixels("image", (4, 4), (0.5,) * 3, (0.5,) * 3)
    source = FeedSource("pixels", ("image",), {"image": (pixels,)}, "float32", (None, 3, 4, 4))
    kept = Preprocessing((source,), output="scores", classes=("cat", "dog"))
    instance = Recording(PICTURES, [0.0, np.log(3)])
    metadata = {METADATA_KEY: kept.to_json()}
    [found], labels = add_processing([instance], ModelSettings(), tmp_path, metadata)
    assert labels == {"scores": ["cat", "dog"]}
    assert [(spec.name, spec.is_binary) for spec in found.inputs] == [("image", True)]
    result = found.run({"image": objects(picture((255, 0, 0)))})
    assert result["labels"].tolist() == [["dog", "cat"]]
    np.testing.assert_allclose(result["scores"], [[0.75, 0.25]], rtol=1e-6)
    np.testing.assert_allclose(instance.feeds["pixels"][0, :, 0, 0], [1, -1, -1])
    plain = processed(instance, tmp_path, metadata, preprocess="none", postprocess="none")
    assert plain is instance


def test_stored_columns_are_inputs(tmp_path: Path) -> None:
    encoders = {
        "age": (Standardize("age", (30.0,), (10.0,)),),
        "city": (OneHotColumn("city", ("Bern", "Rome")),),
    }
    source = FeedSource("x", ("age", "city"), encoders, "float32", (None, 3))
    kept = Preprocessing((source,), output="p", classes=("no", "yes"), probabilities=True)
    instance = Recording([TensorSpec("x", "FP32", (-1, 3))], [0.8], "p")
    found = processed(instance, tmp_path, {METADATA_KEY: kept.to_json()})
    assert list(found.inputs) == [
        TensorSpec("age", "FP32", (-1,)),
        TensorSpec("city", "BYTES", (-1,), samples=("Bern", "Rome")),
    ]
    feeds = random_feeds(found.inputs, {"age": 0, "city": 0}, 9, 1, {}, 0, LARGE)
    assert set(feeds["city"]) == {"Bern", "Rome"}  # else batching could not be checked
    assert '"data":["Bern"]' in example_command("http://a", found.inputs)
    assert ("city", "BYTES", "np.full((1,), b'Bern', object)") in example_arrays(found.inputs)
    assert found.run({"age": np.zeros(0, np.float32), "city": objects()})["scores"].shape == (0, 2)
    result = found.run({"age": np.array([40.0], np.float32), "city": objects("Rome")})
    assert instance.feeds["x"].tolist() == [[1, 0, 1]]
    assert result["labels"].tolist() == [["yes", "no"]]
    np.testing.assert_allclose(result["scores"], [[0.8, 0.2]], rtol=1e-6)


def test_wrong_data_of_a_client_is_a_feed_error(tmp_path: Path) -> None:
    source = FeedSource("x", ("n",), {}, "int64", (None,))
    kept = Preprocessing((source,), output="y")
    instance = Recording([TensorSpec("x", "INT64", (-1,))], [1.0])
    found = processed(instance, tmp_path, {METADATA_KEY: kept.to_json()})
    assert list(found.outputs) == instance.outputs  # without classes, the model's own
    with pytest.raises(FeedError, match="not a whole number"):
        found.run({"n": np.array([1.5])})
