"""Training on folders that Hugging Face's `datasets` saved: written here as it writes them.

The last test writes them with the package itself, where it is installed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.runner.architectures.new_model import new_model
from onward.runner.data.open_data import open_data
from onward.runner.plan.prepared_feeds import prepare_feeds
from tests.runner.plan.planned_runs import export, mlp, plan_of, reasons, train

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'onward[data]'")

LABEL = {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}
X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)


def save(folder: Path, table: Any, features: Mapping[str, Any], shards: int = 1) -> Path:
    """Write a folder as save_to_disk of datasets 5.2 does."""
    folder.mkdir(parents=True)
    described = json.dumps({"info": {"features": features}})
    table = table.replace_schema_metadata({"huggingface": described})
    names = [f"data-{n:05d}-of-{shards:05d}.arrow" for n in range(shards)]
    rows = table.num_rows // shards
    for number, name in enumerate(names):
        part = table.slice(number * rows, rows)
        with (
            pa.OSFile(str(folder / name), "wb") as file,
            pa.ipc.new_stream(file, part.schema) as to,
        ):
            to.write_table(part)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def flowers(folder: Path, rows: int = 12, shards: int = 1) -> Path:
    numbers = pa.array(X[:rows].tolist(), pa.list_(pa.float32(), 4))
    table = pa.table({"x": numbers, "label": [row % 3 for row in range(rows)]})
    value = {"feature": {"dtype": "float32", "_type": "Value"}, "length": 4, "_type": "List"}
    return save(folder, table, {"x": value, "label": LABEL}, shards)


@pytest.mark.parametrize("shards", [1, 3])
def test_names_of_class_labels_are_the_classes(tmp_path: Path, shards: int) -> None:
    plan = plan_of(mlp(), flowers(tmp_path / "flowers", shards=shards))
    assert plan.classes == ("cat", "dog", "owl")
    assert reasons(plan)["classes"] == "cat, dog, owl"
    feeds = next(plan.training.epoch(0))
    assert feeds.feeds["target"].tolist() == [row % 3 for row in feeds.positions]
    assert train(plan)["loss"] > 0


def test_dataset_dict_has_its_validation_split(tmp_path: Path) -> None:
    flowers(tmp_path / "data/train")
    flowers(tmp_path / "data/validation", rows=6)
    flowers(tmp_path / "data/test", rows=3)
    (tmp_path / "data/dataset_dict.json").write_text('{"splits": ["train", "validation", "test"]}')
    plan = plan_of(mlp(), tmp_path / "data")
    assert plan.sizes == {"training rows": 12, "validation rows": 6}
    assert plan.classes == ("cat", "dog", "owl")


def test_two_named_classes_and_one_output_are_binary(tmp_path: Path) -> None:
    table = pa.table({"a": [0.0, 1.0] * 6, "label": [0, 1] * 6})
    names = {"names": ["no", "yes"], "_type": "ClassLabel"}
    folder = save(tmp_path / "data", table, {"label": names})
    assert plan_of(mlp(features=1, classes=1), folder).classes == ("no", "yes")


def test_column_other_than_the_target_has_no_classes(tmp_path: Path) -> None:
    table = pa.table({"label": [0, 1, 2] * 4, "y": np.arange(12.0)})
    folder = save(tmp_path / "data", table, {"label": LABEL})
    plan = plan_of(mlp(features=1, classes=1), folder, target="y")
    assert plan.classes == () and plan.monitor == "val_mae"


def pictures(mode: str) -> list[dict[str, Any]]:
    image = pytest.importorskip("PIL.Image", reason="PIL is not installed")
    rows = []
    for level in range(0, 240, 20):
        file = io.BytesIO()
        image.fromarray(np.full((8, 8, 3), level, np.uint8)).convert(mode).save(file, "png")
        rows.append({"bytes": file.getvalue(), "path": None})
    return rows


@pytest.mark.parametrize("mode, channels", [("L", 1), ("RGB", 1), ("RGB", 3)])
def test_images_have_the_models_channels_and_size(tmp_path: Path, mode: str, channels: int) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(pictures(mode), kind), "label": [0, 1, 2] * 4})
    folder = save(tmp_path / "data", table, {"image": {"_type": "Image"}, "label": LABEL})
    model = new_model("cnn", image=(channels, 6, 6), classes=3)
    plan = plan_of(model, folder)
    assert next(plan.training.epoch(0)).feeds["image"].shape == (4, channels, 6, 6)
    assert plan.classes == ("cat", "dog", "owl")
    prepared = prepare_feeds(export(plan, tmp_path / "model.onnx"), [str(folder)])
    assert prepared is not None and prepared.feeds["image"].shape == (12, channels, 6, 6)


def test_arrays_have_the_shape_of_their_feature(tmp_path: Path) -> None:
    table = pa.table({"pixels": np.zeros((12, 6, 6), np.uint8).tolist(), "label": [0, 1, 2] * 4})
    table = table.set_column(0, "pixels", table["pixels"].cast(pa.list_(pa.list_(pa.uint8()))))
    shaped = {"shape": [6, 6], "dtype": "uint8", "_type": "Array2D"}
    folder = save(tmp_path / "data", table, {"pixels": shaped, "label": LABEL})
    assert str(open_data(folder).columns["pixels"]) == "uint8[6, 6]"
    plan = plan_of(new_model("cnn", image=(1, 6, 6), classes=3), folder)
    assert next(plan.training.epoch(0)).feeds["image"].shape == (4, 1, 6, 6)


@pytest.mark.parametrize("metadata", ["[", "[]", '{"info": 3}', '{"info": {"features": [1]}}'])
def test_metadata_of_another_form_is_ignored(metadata: str) -> None:
    table = pa.table({"n": [1]}).replace_schema_metadata({"huggingface": metadata})
    assert open_data(table).read([0])["n"].tolist() == [1]


def test_folder_of_the_package_itself(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.disable_progress_bars()
    features = datasets.Features(
        {
            "pixels": datasets.Array2D((6, 6), "uint8"),
            "label": datasets.ClassLabel(names=["cat", "dog", "owl"]),
        }
    )
    columns = {"pixels": np.zeros((12, 6, 6), np.uint8), "label": [0, 1, 2] * 4}
    data = datasets.Dataset.from_dict(columns, features=features)
    both = datasets.DatasetDict({"train": data, "validation": data.select(range(6))})
    both.save_to_disk(tmp_path / "data")
    plan = plan_of(new_model("cnn", image=(1, 6, 6), classes=3), tmp_path / "data")
    assert plan.sizes == {"training rows": 12, "validation rows": 6}
    assert plan.classes == ("cat", "dog", "owl") and train(plan)["loss"] > 0
