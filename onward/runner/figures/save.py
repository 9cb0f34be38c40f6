"""Save a figure as a file whose suffix says its format."""

from __future__ import annotations

from os import PathLike

from onward.errors import OptionError
from onward.graph.paths import to_path, writing
from onward.message_text import list_names
from onward.runner.figures.figure import Figure
from onward.runner.figures.png import png_bytes
from onward.runner.figures.svg import svg_text

FORMATS = (".svg", ".png")


def save_figure(figure: Figure, path: str | PathLike[str]) -> None:
    """Write a figure as .svg, or as .png if Pillow is installed (`onward[images]`)."""
    file = to_path(path)
    match file.suffix.lower():
        case ".svg":
            content = svg_text(figure).encode()
        case ".png":
            content = png_bytes(figure)
        case suffix:
            raise OptionError(
                f"a figure cannot be written as {suffix or 'a file without suffix'}: {file}\n"
                f"give a path that ends in one of {list_names(FORMATS)}"
            )
    with writing(file):
        file.write_bytes(content)
