"""The report of a load test as one HTML file that needs no network and no script."""

from __future__ import annotations

from html import escape
from typing import Any

from onward.formatting import show_seconds
from onward.measure.page_style import page_style
from onward.serving.load_test.latency_plot import histogram_svg, percentiles_svg
from onward.serving.load_test.load_figures import LoadFigures


def render_load_page(report: dict[str, Any], figures: LoadFigures) -> str:
    """The text of the page."""
    latency = report["latency"]
    title = f"{report['model']} at {report['server']}"
    headline = f"{report['throughput']:,.0f} answers per second"
    if latency:
        headline += f", p99 {show_seconds(latency['p99'])}"
    body = [
        f"<header><h1>{escape(title)}</h1>",
        f'<p id="headline">{escape(headline)}</p>',
        f'<p id="subline">{escape(describe_load(report))}</p></header>',
        _tiles(report),
        *(f'<div class="card failed"><p>{escape(each)}</p></div>' for each in report["warnings"]),
    ]
    if latency:
        body += [
            '<div class="two">',
            _card("Latencies", "The counts of good answers; the axis is logarithmic.",
                  histogram_svg(figures.latencies)),
            _card("Percentiles", "From the intended start of each request to its answer.",
                  percentiles_svg(figures.latencies)),
            "</div>",
        ]  # fmt: skip
    body.append(_card("Answers", "", _outcomes(report)))
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{page_style()}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return (
        f'<!doctype html><html lang="en"><head>{head}{view}</head>'
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def describe_load(report: dict[str, Any]) -> str:
    """How the server was loaded, in one line."""
    rate = f" at {report['rate']:,g} requests/s ({report['arrivals']})" if report["rate"] else ""
    return (
        f"{report['loop']} loop{rate}, {report['connections']} connections, "
        f"{report['form']}, {report['seconds']:.1f} s, "
        f"{report['processes']} client process{'es' if report['processes'] > 1 else ''}"
        + ("" if report["complete"] else ", interrupted")
    )


def _tiles(report: dict[str, Any]) -> str:
    latency = report["latency"] or {}
    shown = {name: show_seconds(latency[name]) for name in latency if name[0] == "p"}
    if latency:
        shown["maximum"] = show_seconds(latency["max"])
    shown |= {"requests": f"{report['requests']:,}", "errors": f"{report['errors']:,}"}
    tiles = [f'<div class="tile"><b>{v}</b><span>{k}</span></div>' for k, v in shown.items()]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _card(title: str, text: str, content: str) -> str:
    return f'<div class="card"><h2>{title}</h2><p>{text}</p>{content}</div>'


def _outcomes(report: dict[str, Any]) -> str:
    rows = [
        f'<tr><td>{escape(outcome)}</td><td class="n">{count:,}</td></tr>'
        for outcome, count in report["outcomes"].items()
    ]
    return f'<table><tr><th>answer</th><th class="n">requests</th></tr>{"".join(rows)}</table>'
