"""onward unpack: write the ONNX model that a packed file was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onward.cli.progress import WorkProgress
from onward.compress.packing.unpack import unpack as write_unpacked


def unpack(
    packed: Annotated[Path, typer.Argument(help="The packed file.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The model to write. Default: PACKED.onnx")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the model and its external data.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the SHA-256 of every tensor, too.")
    ] = False,
) -> None:
    """Write the ONNX model that a packed file was made from, bit for bit.

    External data gets its old name, next to the model.

    \b
    onward unpack model.onnxpack -o model.onnx
    """
    with WorkProgress() as progress:
        written = write_unpacked(
            packed, out, overwrite=overwrite, verify=verify, progress=progress.show_step
        )
    typer.echo(f"wrote {written}")
