"""Images as feeds: laid out, resized and scaled as the input asks; unreadable ones refused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from onward.errors import FeedError, OptionError, PackageMissing
from onward.graph.signature import NodeArg
from onward.sessions.feed_files import read_feeds
from onward.sessions.image_feeds import Preparation


def picture(path: Path, *, size: tuple[int, int] = (6, 4), colour: Any = (255, 0, 51)) -> Path:
    """A picture of one colour; `size` is width and height."""
    Image.new("RGB", size, colour).save(path)
    return path


def feed(path: Path, shape: Sequence[Any], *, kind: str = "float", **more: Any) -> Any:
    arg = NodeArg("image", f"tensor({kind})", shape)
    return read_feeds([arg], [str(path)], **more)["image"]


def test_channels_first(tmp_path: Path) -> None:
    pixels = feed(picture(tmp_path / "a.png"), ["n", 3, 2, 3])
    assert pixels.shape == (1, 3, 2, 3) and pixels.dtype == np.float32
    assert np.allclose(pixels[0, :, 0, 0], [1, 0, 0.2])


def test_channels_last(tmp_path: Path) -> None:
    pixels = feed(picture(tmp_path / "a.png"), [1, 2, 3, 3])
    assert pixels.shape == (1, 2, 3, 3) and np.allclose(pixels[0, 0, 0], [1, 0, 0.2])


def test_bytes_stay_bytes(tmp_path: Path) -> None:
    pixels = feed(picture(tmp_path / "a.png"), [1, 4, 6, 3], kind="uint8")
    assert pixels.dtype == np.uint8 and pixels[0, 0, 0].tolist() == [255, 0, 51]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ([1, 1, 8, 8], (1, 1, 8, 8)),
        ([3, 8, 8], (3, 8, 8)),
        ([8, 8, 4], (8, 8, 4)),
        ([8, 8], (8, 8)),
        (["n", "c", "h", "w"], (1, 3, 4, 6)),  # everything open: the image's own size
        (["n", 3, None, None], (1, 3, 4, 6)),
        (["n", "h", "w", 3], (1, 4, 6, 3)),
    ],
)
def test_the_layout_is_guessed_from_the_shape(tmp_path: Path, shape: Any, expected: Any) -> None:
    assert feed(picture(tmp_path / "a.png"), shape).shape == expected


def test_dynamic_sizes_can_be_given(tmp_path: Path) -> None:
    shape = ["n", 3, "h", "w"]
    pixels = feed(picture(tmp_path / "a.png"), shape, sizes={"h": 10, "image:3": 12})
    assert pixels.shape == (1, 3, 10, 12)


def test_several_images_are_a_batch(tmp_path: Path) -> None:
    paths = [picture(tmp_path / f"{n}.png", size=(4 + n, 4)) for n in range(3)]
    arg = NodeArg("image", "tensor(float)", ["n", 3, 5, 5])
    notes: list[str] = []
    feeds = read_feeds([arg], [f"image={path}" for path in paths], notes=notes)
    assert feeds["image"].shape == (3, 3, 5, 5)
    assert notes == ["image: 3 images as NCHW, 5 x 5, RGB, / 255"]
    with pytest.raises(FeedError, match="different sizes cannot be one batch"):
        read_feeds([NodeArg("image", "tensor(float)", ["n", 3, "h", "w"])], list(map(str, paths)))
    with pytest.raises(FeedError, match="takes one image, but 3 were given"):
        read_feeds([NodeArg("image", "tensor(float)", [3, 5, 5])], list(map(str, paths)))


def test_pixels_are_scaled_and_shifted_by_channel(tmp_path: Path) -> None:
    how = Preparation(mean=(0.5, 0.5, 0.1), std=(0.5, 0.25, 0.1))
    pixels = feed(picture(tmp_path / "a.png"), [1, 3, 4, 6], preparation=how)
    assert np.allclose(pixels[0, :, 0, 0], [1, -2, 1], atol=1e-6)
    raw = feed(tmp_path / "a.png", [1, 3, 4, 6], preparation=Preparation(scale=1))
    assert raw[0, :, 0, 0].tolist() == [255, 0, 51]


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    image = Image.new("L", (2, 1))
    image.putpixel((1, 0), 255)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    image.save(tmp_path / "a.png", exif=exif)
    assert feed(tmp_path / "a.png", ["h", "w"]).tolist() == [[0], [1]]


@pytest.mark.parametrize(
    ("preparation", "message"),
    [
        (Preparation(mean=(1, 2)), r"--mean takes 1 number or one for each channel \(3\)"),
        (Preparation(std=(1, 0, 1)), "cannot be 0"),
        (Preparation(scale=0), "cannot be 0"),
    ],
)
def test_wrong_scaling_options_are_refused(
    tmp_path: Path, preparation: Preparation, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        feed(picture(tmp_path / "a.png"), [1, 3, 4, 6], preparation=preparation)


def test_files_that_are_not_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no")
    with pytest.raises(FeedError, match="is not an image that Pillow can read"):
        feed(tmp_path / "a.png", [1, 3, 4, 6])
    with pytest.raises(FileNotFoundError, match="no image at"):
        feed(tmp_path / "none.png", [1, 3, 4, 6])


@pytest.mark.parametrize(
    ("shape", "message"),
    [([1, 4], None), ([4], "does not take an image"), ([1, 5, 8, 8], "has 5 channels")],
)
def test_inputs_of_other_ranks_take_no_image(
    tmp_path: Path, shape: Any, message: str | None
) -> None:
    path = picture(tmp_path / "a.png")
    if message is None:
        assert feed(path, shape).shape == (1, 4)
        return
    with pytest.raises(FeedError, match=message):
        feed(path, shape)


def test_an_image_goes_to_the_only_matching_input(tmp_path: Path) -> None:
    inputs = [
        NodeArg("size", "tensor(int64)", [2]),
        NodeArg("image", "tensor(float)", [1, 3, 2, 2]),
    ]
    assert read_feeds(inputs, [str(picture(tmp_path / "a.png"))])["image"].shape == (1, 3, 2, 2)


def test_a_missing_pillow_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = picture(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PackageMissing, match=r"Pillow.*\n.*pip install onward\[images\]"):
        feed(path, [1, 3, 4, 6])
