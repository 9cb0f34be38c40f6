"""Print the report of `onward inspect`, section by section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from onward.cli.console import make_table, print_pairs, print_table, show_shape, warn
from onward.formatting import show_bytes, show_count

_OPERATORS_AT_MOST = 40
_LARGEST_SHOWN = 5


def show_facts(console: Console, report: dict[str, Any], nodes: bool) -> None:
    """Print what is known from the graph."""
    print_pairs(console, _heading(report))
    _show_values(console, report)
    _show_operators(console, report)
    _show_weights(console, report)
    _show_subgraphs_and_functions(console, report)
    _show_cost(console, report["cost"], report["memory"])
    if nodes:
        _show_nodes(console, report)


def show_warnings(console: Console, warnings: Sequence[str]) -> None:
    """Print what could not be found out."""
    for warning in warnings:
        warn(console, warning)


def _heading(report: dict[str, Any]) -> list[tuple[str, str]]:
    opsets = ", ".join(f"{domain} {version}" for domain, version in report["opsets"].items())
    files = ", ".join(f"{n} ({show_bytes(b)})" for n, b in report["external_files"].items())
    rows = [
        ("file", f"{report['file']}, {show_bytes(report['bytes'])}"),
        ("external data", files),
        ("opsets", f"{opsets}; IR {report['ir_version']}"),
        ("producer", report["producer"]),
        ("graph", report["graph"]),
        ("description", " ".join(report["description"].split())[:300]),
        *((f"metadata {key}", value[:200]) for key, value in report["metadata"].items()),
    ]
    return [(name, text) for name, text in rows if text]


def _show_values(console: Console, report: dict[str, Any]) -> None:
    table = make_table("", "name", "type", "shape")
    for role, group in (("input", report["inputs"]), ("output", report["outputs"])):
        for value in group:
            shape = show_shape(value["shape"]) + (
                " (has a default)" if value["has_default"] else ""
            )
            table.add_row(role, value["name"], value["type"], shape)
    console.print(table)


def _show_operators(console: Console, report: dict[str, Any]) -> None:
    flops: Mapping[str, float] = (report["cost"] or {}).get("flops_by_operator", {})
    total = sum(flops.values())
    table = make_table("operator", ">nodes", ">FLOPs", ">share")
    rows = sorted(report["operators"].items(), key=lambda row: (-flops.get(row[0], 0), -row[1]))
    for name, count in rows[:_OPERATORS_AT_MOST]:
        spent = flops.get(name)
        figures = ("", "") if not spent else (show_count(spent), f"{spent / total:.1%}")
        table.add_row(name, f"{count:,}", *figures)
    print_table(console, table, f"{report['nodes']:,} nodes")
    if len(rows) > _OPERATORS_AT_MOST:
        console.print(f"... and {len(rows) - _OPERATORS_AT_MOST} more operators (--json has all)")


def _show_weights(console: Console, report: dict[str, Any]) -> None:
    amount = report["weights"]
    title = (
        f"weights: {amount['tensors']:,} tensors, {amount['elements']:,} elements, "
        f"{show_bytes(amount['bytes'])}"
    )
    if not amount["tensors"]:
        console.print("weights: none")
        return
    table = make_table("type", ">tensors", ">elements", ">size")
    for kind, each in report["weights_by_type"].items():
        size = show_bytes(each["bytes"])
        table.add_row(kind, f"{each['tensors']:,}", f"{each['elements']:,}", size)
    print_table(console, table, title)
    table = make_table("name", "type", "shape", ">size", "file")
    for tensor in report["largest"][:_LARGEST_SHOWN]:
        size = show_bytes(tensor["bytes"])
        shape = show_shape(tensor["shape"])
        table.add_row(tensor["name"], tensor["dtype"], shape, size, tensor["file"] or "")
    print_table(console, table, "the largest weights")


def _show_subgraphs_and_functions(console: Console, report: dict[str, Any]) -> None:
    if report["subgraphs"]:
        held = ", ".join(f"{count} in {name}" for name, count in report["subgraphs"].items())
        console.print(f"subgraphs: {held}")
    if report["functions"]:
        table = make_table("name", ">nodes", ">calls")
        for function in report["functions"]:
            table.add_row(function["name"], f"{function['nodes']:,}", f"{function['calls']:,}")
        print_table(console, table, "functions")


def _show_cost(
    console: Console, cost: dict[str, Any] | None, memory: dict[str, int] | None
) -> None:
    if cost is None:
        return
    at = ", ".join(f"{name}={size}" for name, size in cost["sizes"].items())
    rows = [
        ("one run", f"at {at} (change it with --size)" if at else "every size is fixed"),
        ("FLOPs", show_count(cost["flops"])),
        ("data moved", f"{show_bytes(cost['bytes_read'] + cost['bytes_written'])}, node by node"),
    ]
    if memory is not None:
        weights, values = show_bytes(memory["weights"]), show_bytes(memory["activations"])
        unknown = memory["values_of_unknown_size"]
        less = f" without {unknown:,} values of unknown size" if unknown else ""
        text = f"weights {weights}, activations at most {values}{less} (see --memory)"
        rows.append(("memory", text))
    if cost["unknown_nodes"]:
        rows.append(("not counted", f"{cost['unknown_nodes']:,} nodes of unknown shapes"))
    if cost["branches"]:
        rows.append(
            ("branches", f"{cost['branches']:,} If, counted with the more expensive branch")
        )
    if cost["loops_counted_once"]:
        count = cost["loops_counted_once"]
        rows.append(("loops", f"{count:,} Loop with unknown trip count, counted once"))
    if cost["estimated_nodes"]:
        rows.append(("estimated", f"{cost['estimated_nodes']:,} nodes"))
    print_pairs(console, rows)


def show_providers(console: Console, support: dict[str, Any]) -> None:
    """Print which provider runs which nodes, and why some are not on the first provider."""
    table = make_table("provider", ">supports", ">assigned", "unsupported")
    for name, count in support["takes"].items():
        refused = ", ".join(
            f"{op} ({n})" if n > 1 else op for op, n in support["refuses"][name].items()
        )
        share = support["shares"].get(name, 0)
        table.add_row(name, f"{count:,}", f"{share:,}" if share else "", refused)
    print_table(
        console, table, f"providers of the {support['nodes']:,} nodes of the prepared model"
    )
    moved = [place for place in support["division"] if place["why"]]
    for place in moved[:10]:
        where = place["provider"] or "no provider"
        console.print(f"{place['operator']} {place['name']!r}: {where}, because {place['why']}")
    if len(moved) > 10:
        console.print(f"... and {len(moved) - 10} more nodes (--json has all)")
    if any(place["provider"] is None for place in support["division"]):
        warn(console, "no provider of this machine runs some nodes of this model")


def _show_nodes(console: Console, report: dict[str, Any]) -> None:
    table = make_table("node", "operator", "inputs", "outputs", ">FLOPs")
    for node in report["node_list"]:
        flops = "" if not node["flops"] else show_count(node["flops"])
        inputs, outputs = ", ".join(filter(None, node["inputs"])), ", ".join(node["outputs"])
        table.add_row(node["name"], node["operator"], inputs, outputs, flops)
    print_table(console, table, "nodes")
