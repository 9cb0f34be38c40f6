"""Folders of images: classes, sizes, splits, broken files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from onward.errors import DataError, FileMissing, PackageMissing
from onward.runner.data.image_folder import ImageFolder
from onward.runner.data.open_data import find_splits, open_data

Image = pytest.importorskip("PIL.Image", reason="PIL is not installed")


def paint(path: Path, value: int, size: tuple[int, int] = (4, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), value, np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(("dog/b.png", "dog/a.PNG", "cat/deep/c.png")):
        paint(tmp_path / "animals" / name, 50 * number)
    (tmp_path / "animals/cat/notes.txt").write_text("no image")
    (tmp_path / "animals/README.txt").write_text("about the animals")
    (tmp_path / "animals/.hidden").mkdir()
    return tmp_path / "animals"


def test_labels_are_the_folders_in_sorted_order(folder: Path) -> None:
    data = ImageFolder(folder)
    assert data.classes == ("cat", "dog") and len(data) == 3
    batch = data.read([0, 1, 2])
    assert batch["label"].tolist() == [0, 1, 1]
    assert [int(image.max()) for image in batch["image"]] == [100, 50, 0]
    assert batch["image"][0].shape == (3, 4, 6) and str(data.columns["image"]) == "image[3, ?, ?]"


def test_images_of_one_size_are_one_array(folder: Path) -> None:
    paint(folder / "cat/large.png", 7, (20, 30))
    data = open_data(folder, image_size=(8, 5), channels=1, target="label")
    assert str(data.columns["image"]) == "image[1, 8, 5]"
    image = data.read([1])["image"]
    assert image.shape == (1, 1, 8, 5) and image.dtype == np.uint8 and set(image.flat) == {7}


def test_labels_are_read_without_decoding(folder: Path) -> None:
    (folder / "cat/deep/c.png").write_bytes(b"broken")
    assert ImageFolder(folder).read([0], ["label"])["label"].tolist() == [0]


@pytest.mark.parametrize("kept", [0, 20, 0.7])
def test_a_broken_image_is_named_or_skipped(folder: Path, kept: float) -> None:
    broken = folder / "dog/b.png"
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (40, 40, 3), np.uint8)).save(broken)
    whole = broken.read_bytes()
    broken.write_bytes(whole[: int(kept if kept >= 1 else kept * len(whole))])
    data = ImageFolder(folder)
    assert data.read([0, 1])["label"].tolist() == [0, 1]
    with pytest.raises(DataError, match=r"dog/b.png is a broken image: [^<]*\n.*skip_broken=True"):
        data.read([2])
    data = open_data(folder, skip_broken=True)
    assert len(data) == 2 and data.skipped == (broken,)


def test_folders_without_images_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileMissing, match=r"no folder of images at .*animal\n.*'animals'"):
        ImageFolder(tmp_path / "animal")
    for path in folder.rglob("*.[pP][nN][gG]"):
        path.write_bytes(b"broken")
    with pytest.raises(DataError, match="is empty: every image in it is broken"):
        ImageFolder(folder, skip_broken=True)
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="has no folders of classes"):
        ImageFolder(tmp_path / "none")
    with pytest.raises(DataError, match=r"none has no data that can be read\nsupported are .csv"):
        open_data(tmp_path / "none")


def test_folder_without_images_is_no_class(folder: Path) -> None:
    (folder / "__MACOSX").mkdir()
    (folder / "__MACOSX" / "._a.png").write_bytes(b"attributes")
    assert "__MACOSX" not in ImageFolder(folder).classes
    assert ImageFolder(folder).read([0])["label"].tolist() == [0]


def test_a_class_that_a_split_lacks_keeps_its_number(tmp_path: Path) -> None:
    for name in ("train/b/1.png", "train/c/1.png", "val/a/1.png", "val/c/1.png"):
        paint(tmp_path / name, 1)
    assert list(find_splits(tmp_path)) == ["train", "val"]
    train, val = open_data(tmp_path), open_data(tmp_path, split="val")
    assert train.classes == val.classes == ("a", "b", "c")
    assert train.read([0, 1])["label"].tolist() == [1, 2]
    assert val.read([0, 1])["label"].tolist() == [0, 2]
    with pytest.raises(DataError, match=r"has no split 'vall'\ndid you mean 'val'"):
        open_data(tmp_path, split="vall")


def test_without_pillow_the_error_names_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PackageMissing, match=r"Pillow.*\n.*pip install 'onward\[data\]'"):
        ImageFolder(folder).read([0])
    with pytest.raises(PackageMissing):
        ImageFolder(folder, skip_broken=True)


def test_pixels_of_16_bits_become_8_bits(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((2, 2), 257 * 100, np.uint16)).save(tmp_path / "a" / "1.png")
    assert (ImageFolder(tmp_path).read(np.arange(1))["image"][0] == 100).all()
    Image.fromarray(np.ones((2, 2), np.float32)).save(tmp_path / "a" / "2.tiff")
    with pytest.raises(DataError, match=r"2\.tiff is a broken image: its pixels have 32 bits"):
        ImageFolder(tmp_path).read(np.arange(1, 2))
