"""Folders of images: FOLDER/CLASS/FILE, labels from the names of the classes' folders."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from onward.errors import DataError, PackageMissing
from onward.graph.paths import check_exists
from onward.runner.data.dataset import (
    IMAGE,
    Array,
    Column,
    check_positions,
    choose_columns,
    stack_rows,
)
from onward.runner.data.line_index import unreadable
from onward.sessions.picture_modes import convert_picture

IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's names for so many channels
_THREADS = 4  # that look for broken images


class ImageFolder:
    """Images in a column `image`, and the number of the class of each in `label`.

    Images are uint8 (channels, height, width). If `size` is (height, width), they are resized to
    it; if not, each keeps its own. With `skip_broken`, every image is decoded once while opening,
    and `skipped` lists the files that are left out.
    """

    def __init__(
        self,
        folder: Path,
        *,
        size: tuple[int, int] | None = None,
        channels: int = 3,
        classes: Sequence[str] | None = None,
        skip_broken: bool = False,
    ) -> None:
        """`classes`: None takes the names of the folders in sorted order."""
        check_exists(folder, "folder of images")
        self.folder, self._size, self._channels = folder, size, channels
        self.classes = tuple(classes or class_names(folder))
        found = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in _images(folder / name)
        ]
        self.skipped: tuple[Path, ...] = ()
        if skip_broken:
            found = self._without_broken(found)
        if not found:
            why = "every image in it is broken" if self.skipped else "no class has an image"
            raise DataError(f"{folder} is empty: {why}\nput images into {folder}/CLASS/")
        self._paths = [path for path, _ in found]
        self._labels = np.array([label for _, label in found], np.int64)
        height, width = size or (None, None)
        image = Column(IMAGE, (channels, height, width))
        self.columns = {"image": image, "label": Column("int64")}

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        rows = check_positions(positions, len(self), self.folder)
        names = choose_columns(self.columns, columns, self.folder)
        batch = {}
        if "image" in names:
            images = [self._read(self._paths[row]) for row in rows]
            batch["image"] = stack_rows(images, self.columns["image"])
        if "label" in names:
            batch["label"] = self._labels[rows]
        return batch

    def file_sizes(self) -> list[int]:
        """The bytes of each image's file."""
        return [path.stat().st_size for path in self._paths]

    def _read(self, path: Path) -> Array:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error
        return decode_image(data, path, self._size, self._channels)

    def _without_broken(self, found: list[tuple[Path, int]]) -> list[tuple[Path, int]]:
        def is_whole(path: Path) -> bool:
            try:
                self._read(path)
            except PackageMissing:
                raise
            except DataError:
                return False
            return True

        with ThreadPoolExecutor(_THREADS) as pool:
            whole = list(pool.map(is_whole, (path for path, _ in found)))
        self.skipped = tuple(path for (path, _), kept in zip(found, whole) if not kept)
        return [each for each, kept in zip(found, whole) if kept]


def decode_image(
    data: bytes, source: object, size: tuple[int, int] | None = None, channels: int = 3
) -> Array:
    """An image file's bytes as pixels: uint8 (channels, height, width)."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise PackageMissing(
            f"{source} is an image, and Pillow, which reads images, is not installed\n"
            "install it with: pip install 'onward[data]'"
        ) from None
    try:
        with Image.open(io.BytesIO(data)) as file:
            picture = convert_picture(file, _MODES[channels])
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = str(error).replace("\n", " ")
        if isinstance(error, UnidentifiedImageError):  # it names a buffer, not what is wrong
            why = "its bytes are those of no image" if data else "the file is empty"
        raise DataError(
            f"{source} is a broken image: {why}\n"
            "remove or replace it, or leave broken images out: skip_broken=True"
        ) from error
    if size is not None and size != (picture.height, picture.width):
        picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture, np.uint8).reshape(picture.height, picture.width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def class_names(folder: Path, others: Iterable[Path] = ()) -> list[str]:
    """The classes of a folder, and of its other splits: one that a split lacks keeps its number.

    A folder without an image, such as the __MACOSX of an archive, is no class.
    """
    entries = [entry for each in (folder, *others) for entry in subfolders(each)]
    names = {entry.name for entry in entries if has_images(entry)} or {e.name for e in entries}
    if not names:
        raise DataError(
            f"{folder} has no folders of classes\nput images into {folder}/CLASS/, such as "
            f"{folder}/cat/1.jpg"
        )
    return sorted(names)


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted by name; hidden ones are left out."""
    return sorted(each for each in folder.iterdir() if each.is_dir() and each.name[0] != ".")


def has_images(folder: Path) -> bool:
    """Whether a folder, or a folder in it, has an image."""
    return any(map(_is_image, folder.rglob("*")))


def _images(folder: Path) -> list[Path]:
    return sorted(filter(_is_image, folder.rglob("*"))) if folder.is_dir() else []


def _is_image(path: Path) -> bool:
    known = path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")
    return known and path.is_file()
