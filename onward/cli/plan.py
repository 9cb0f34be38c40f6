"""onward plan: estimate memory, traffic and time of each layout of a distributed run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from onward import quantities
from onward.cli import arguments
from onward.cli.console import make_console, make_table, print_json, print_pairs, print_table
from onward.cli.progress import WorkProgress
from onward.formatting import percent, show_bytes, show_count, show_rate, show_seconds
from onward.lazy import LazyModule

if TYPE_CHECKING:
    from onward.distributed.planner import (
        layout_estimate,
        plan_layouts,
        planned_program,
        training_costs,
    )
    from onward.distributed.planner.layout_estimate import Devices, DistributedEstimate
    from onward.distributed.planner.plan_layouts import LayoutPlan
    from onward.distributed.planner.training_costs import TrainingCosts
    from onward.distributed.simulation import cluster
else:  # completion in the shell must not wait for them
    cluster = LazyModule("onward.distributed.simulation.cluster")
    layout_estimate = LazyModule("onward.distributed.planner.layout_estimate")
    plan_layouts = LazyModule("onward.distributed.planner.plan_layouts")
    planned_program = LazyModule("onward.distributed.planner.planned_program")
    training_costs = LazyModule("onward.distributed.planner.training_costs")

_ROWS = 32  # of a device, as onward train has by default
_STEPS = 12  # of the progress bar, about


def plan(
    model: arguments.Model,
    devices: Annotated[int, typer.Option(min=1, help="Devices, one process on each.")],
    memory: Annotated[str, typer.Option(metavar="BYTES", help="Memory of a device.")] = "80GiB",
    nodes: Annotated[int, typer.Option(min=1, help="Machines that have the devices.")] = 1,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Rows of a step, of all devices; 32 for each if left out."),
    ] = None,
    size: arguments.Sizes = None,
    loss: Annotated[
        str, typer.Option(metavar="NAME", help="As for onward train; auto: what fits the output.")
    ] = "auto",
    optimizer: Annotated[str, typer.Option(metavar="NAME", help="As for onward train.")] = "adamw",
    precision: Annotated[
        str, typer.Option(metavar="fp32|bf16|fp16", help="Of products and their activations.")
    ] = "fp32",
    state_dtype: Annotated[
        str, typer.Option(metavar="fp32|bf16", help="Of the optimizer's state.")
    ] = "fp32",
    flops: Annotated[
        str, typer.Option(metavar="NUMBER", help="FLOP/s of a device, as measured.")
    ] = "100T",
    bandwidth: Annotated[
        str, typer.Option(metavar="BYTES/s", help="Of a node's link to other nodes.")
    ] = "25GB/s",
    intra_bandwidth: Annotated[
        str, typer.Option(metavar="BYTES/s", help="Of a device's link to others on its node.")
    ] = "200GB/s",
    latency: Annotated[
        str, typer.Option(metavar="SECONDS", help="Of a message between nodes; half inside one.")
    ] = "10us",
    as_json: arguments.Json = False,
) -> None:
    """Estimate the memory, the traffic and the time of each layout of a distributed run.

    Data parallel, ZeRO 1, 2 and 3 and hybrid sharding, the fastest that fits first, each with the
    number of micro-batches that fits and the bytes that are missing where none does. Nothing
    runs. Exit code 1: nothing fits.

    \b
    onward plan model.onnx --devices 8 --memory 80GiB
    onward plan model.onnx --devices 16 --nodes 2 --batch 512 --size time=1024 --precision bf16
    onward plan model.onnx --devices 4 --memory 16GB --bandwidth 10Gbit/s --flops 20T --json
    """
    between = quantities.read_seconds(latency)
    available = layout_estimate.Devices(
        count=devices,
        nodes=nodes,
        memory=quantities.read_bytes(memory),
        flops=quantities.read_flops(flops),
        inside=cluster.Link(
            latency=between / 2,
            bandwidth=quantities.read_bandwidth(intra_bandwidth, "--intra-bandwidth"),
        ),
        between=cluster.Link(latency=between, bandwidth=quantities.read_bandwidth(bandwidth)),
    )
    rows, sizes = batch or _ROWS * devices, arguments.read_sizes(size)
    plan_layouts.rows_per_device(available, rows)
    with WorkProgress() as work:
        done = iter(range(_STEPS))
        work.show_step("compiling the training program", next(done), _STEPS)
        program = planned_program.open_planned_program(
            model,
            loss=loss,
            optimizer=optimizer,
            precision=precision,
            state_dtype=state_dtype,
        )
        work.show_step("sizes and FLOPs", next(done), _STEPS)
        costs = training_costs.measure_costs(program, sizes)
        if batch is None and costs.fixed is not None:
            rows = costs.fixed * devices
        found = plan_layouts.plan_layouts(
            costs, available, rows, progress=lambda step: work.show_step(step, next(done), _STEPS)
        )
    settings = {"optimizer": optimizer, "precision": precision, "state_dtype": state_dtype}
    if as_json:
        print_json(_facts(found, costs, settings))
    else:
        _show(make_console(), found, costs, settings)
    if found.best is None:
        raise typer.Exit(1)


# -- printing -------------------------------------------------------------------------------------


def _show(
    console: Console, found: LayoutPlan, costs: TrainingCosts, settings: dict[str, str]
) -> None:
    layout, devices = costs.program.layout, found.devices
    rows = plan_layouts.rows_per_device(devices, found.batch)
    dynamic_sizes = ", ".join(f"{name}={size}" for name, size in costs.sizes.items())
    pairs = [
        ("parameters", f"{show_count(sum(each.size for each in layout.parameters))}"),
        ("training", _show_training(settings)),
        ("batch", f"{found.batch:,} rows of a step, at most {rows:,} on a device"),
        *([("sizes", f"{dynamic_sizes}; others: --size NAME=N")] if dynamic_sizes else []),
        ("devices", _show_devices(devices)),
    ]
    print_pairs(console, pairs)
    table = make_table(
        "layout",
        ">micro-batches",
        ">memory",
        ">parameters",
        ">gradients",
        ">optimizer",
        ">activations",
        ">buffers",
        ">sent",
        ">time",
        ">hidden",
        "fits",
    )
    for each in found.estimates:
        table.add_row(*_row(each))
    print_table(console, table)
    if costs.sized.unknown:
        console.print(f"not counted: {costs.sized.unknown} nodes of unknown size")
    for hint in found.hints:
        console.print(hint)
    if found.best is not None:
        print_pairs(console, [("best", found.best.name), *_to_paste(found.best)])


def _show_training(settings: dict[str, str]) -> str:
    narrow = settings["state_dtype"] != "fp32"
    state = f", its state in {settings['state_dtype']}" if narrow else ""
    return f"{settings['optimizer']}{state}, {settings['precision']}"


def _show_devices(devices: Devices) -> str:
    speed = show_rate(devices.flops, "FLOP/s")
    each = f"{devices.count:,}, {show_bytes(devices.memory)} and {speed} each"
    inside = f"{show_rate(devices.inside.bandwidth, 'B/s')} inside a node"
    if devices.nodes == 1:
        return f"{each}, {inside}" if devices.count > 1 else each
    between = f"{show_rate(devices.between.bandwidth, 'B/s')} between {devices.nodes:,} nodes"
    return f"{each}, {inside}, {between}"


def _row(each: DistributedEstimate) -> list[str]:
    memory = each.memory
    parts = (
        memory.total,
        memory.parameters,
        memory.gradients,
        memory.optimizer,
        memory.activations,
        memory.buffers,
        sum(each.sent.values()),
    )
    rows = "row" if each.rows == 1 else "rows"
    return [
        each.name + (", offload" if each.parallel.offload else ""),
        f"{each.accumulate:,} of {each.rows:,} {rows}",
        *map(show_bytes, parts),
        show_seconds(each.step.seconds),
        percent(each.step.hidden) if each.step.communication else "",
        "yes" if each.fits else f"no: {show_bytes(each.missing)} missing",
    ]


def _to_paste(best: DistributedEstimate) -> list[tuple[str, str]]:
    """The arguments of TrainingSession."""
    pairs = []
    if best.accumulate > 1:
        pairs.append(("options", f"TrainingOptions(accumulate={best.accumulate})"))
    if best.parallel.data != 1 or best.parallel.shard > 1:
        pairs.append(("parallel", repr(best.parallel)))
    return pairs


def _facts(found: LayoutPlan, costs: TrainingCosts, settings: dict[str, str]) -> dict[str, Any]:
    return {
        **settings,
        "parameters": sum(each.size for each in costs.program.layout.parameters),
        "batch": found.batch,
        "sizes": costs.sizes,
        "devices": asdict(found.devices),
        "unknown_nodes": costs.sized.unknown,
        "layouts": [
            {
                "name": each.name,
                "parallel": repr(each.parallel),
                "accumulate": each.accumulate,
                "rows": each.rows,
                "fits": each.fits,
                "missing": each.missing,
                "memory": {**asdict(each.memory), "total": each.memory.total},
                "sent": dict(each.sent),
                "seconds": each.step.seconds,
                "compute_seconds": each.step.compute,
                "communication_seconds": each.step.communication,
                "hidden": each.step.hidden,
            }
            for each in found.estimates
        ],
        "hints": list(found.hints),
    }
