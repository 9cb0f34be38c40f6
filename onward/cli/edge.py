"""onward edge: write a model as a folder for a browser, a phone, Node or a reduced build."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onward.cli import arguments
from onward.cli.console import make_console, print_json
from onward.cli.progress import WorkProgress
from onward.lazy import LazyModule

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.compress.early_exits import add_exits as shares
    from onward.compress.edge import edge_export as edges
    from onward.compress.edge import int8_candidates as int8
    from onward.graph import files as files_of_models
else:  # they load the engines
    files_of_models = LazyModule("onward.graph.files")
    edges = LazyModule("onward.compress.edge.edge_export")
    int8 = LazyModule("onward.compress.edge.int8_candidates")
    shares = LazyModule("onward.compress.early_exits.add_exits")


def edge(
    model: arguments.Model,
    target: Annotated[
        str, typer.Option("--target", "-t", help="web, node, android, ios or minimal.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for the files.")],
    quantize: Annotated[
        bool, typer.Option(help="Try int8 forms of the model; --data measures their ranges.")
    ] = False,
    candidate: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="Another form of the model. Repeat it for several."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Rows to quantize and measure with: .npz, .csv, ...")
    ] = None,
    drop: Annotated[str, typer.Option(help="The share of similarity that int8 may lose.")] = "1%",
    measure: Annotated[
        bool, typer.Option(help="Time all forms with onnxruntime-web in Node; write the fastest.")
    ] = False,
    node_modules: Annotated[
        Path | None, typer.Option(help="The folder in which onnxruntime-web is installed.")
    ] = None,
    webgpu: Annotated[bool, typer.Option(help="web: it must also run on WebGPU.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Rows of the timed batch.")] = 1,
    size: arguments.Sizes = None,
    force: Annotated[bool, typer.Option(help="Replace files in the folder.")] = False,
    as_json: arguments.Json = False,
) -> None:
    """Write a model as a folder for a browser, a phone, Node or a reduced build.

    What the target lacks is refused and named. With --measure, the fastest of the original and its
    candidates is written.

    \b
    onward edge model.onnx --target web -o web --quantize --data rows.npz --measure
    onward edge model.onnx --target android -o app
    """
    sizes = arguments.read_sizes(size)
    files = dict(_read_candidate(text) for text in candidate or ())
    share = shares.to_share(drop)

    def make(original: ir.Model) -> Mapping[str, ir.Model]:
        made = {name: files_of_models.load(path) for name, path in files.items()}
        if quantize:
            made |= int8.int8_candidates(original, data, drop=share, sizes=sizes)
        return made

    with WorkProgress() as work:
        report = edges.export_for_edge(
            model,
            target,
            output,
            candidates=make if files or quantize else None,
            measure=measure,
            data=data,
            batch=batch,
            sizes=sizes,
            webgpu=webgpu,
            node_modules=node_modules,
            overwrite=force,
            progress=work.show_step,
        )
    if as_json:
        print_json(report.to_json())
        return
    console = make_console()
    console.print(str(report), markup=False, soft_wrap=True)
    console.print(f"saved {output}", markup=False, soft_wrap=True)


def _read_candidate(text: str) -> tuple[str, Path]:
    name, equals, file = text.partition("=")
    if not equals or not name or not file:
        raise typer.BadParameter(f"--candidate {text}: give NAME=FILE")
    return name, Path(file)
