"""Latencies drawn: bars in a terminal, a histogram and a percentile curve in SVG."""

from __future__ import annotations

from math import log10

from onward.formatting import show_seconds
from onward.serving.load_test.latency_histogram import LatencyHistogram

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 560.0, 240.0, 64.0, 24.0
_MARKS = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)


def draw_bars(latencies: LatencyHistogram, bars: int = 16, width: int = 48) -> list[str]:
    """A histogram as lines of text; each bar is as much wider in time as it is later."""
    parts = latencies.coarse(bars)
    most = max((count for _, _, count in parts), default=0)
    lines = []
    for low, _, count in parts:
        eighths = round(8 * width * count / most)
        if count and not eighths:
            eighths = 1  # one slow answer among millions is seen
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        lines.append(
            f"{show_seconds(low):>10}  {bar} {count:,}" if count else f"{show_seconds(low):>10}"
        )
    return lines


def histogram_svg(latencies: LatencyHistogram, bars: int = 56) -> str:
    """The counts over the latency, which has a logarithmic axis."""
    parts = latencies.coarse(bars)
    most = max(count for _, _, count in parts)
    each = (_WIDTH - _LEFT) / len(parts)
    drawn = [_axes(f"{most:,}", "0")]
    for place, (low, high, count) in enumerate(parts):
        height = (_HEIGHT - _BOTTOM) * count / most
        title = f"{show_seconds(low)} to {show_seconds(high)}: {count:,}"
        drawn.append(
            f'<rect x="{_LEFT + place * each:.1f}" y="{_HEIGHT - _BOTTOM - height:.1f}" '
            f'width="{max(each - 1, 0.5):.1f}" height="{height:.1f}" fill="var(--c0)">'
            f"<title>{title}</title></rect>"
        )
        if place % max(1, len(parts) // 5) == 0:
            drawn.append(_label(_LEFT + place * each, show_seconds(low)))
    return _svg(drawn, "counts of answers over their latency")


def percentiles_svg(latencies: LatencyHistogram, points: int = 120) -> str:
    """The latency at each percentile; the axis has as much room for 99 to 99.9 as for 90 to 99."""
    nines = log10(max(latencies.count, 10))  # as many nines as the answers can show
    top = latencies.maximum
    coordinates = []
    for place in range(points + 1):
        nine = nines * place / points
        latency = latencies.percentile(100 * (1 - 10**-nine))
        coordinates.append(f"{_percentile_x(nine, nines):.1f},{_latency_y(latency, top):.1f}")
    drawn = [_axes(show_seconds(top), "0")]
    for mark in _MARKS:
        nine = -log10(1 - mark / 100) if mark else 0.0
        if nine <= nines:
            drawn.append(_label(_percentile_x(nine, nines), f"p{mark:g}" if mark else "min"))
    line = f'<polyline class="curve" stroke="var(--c1)" points="{" ".join(coordinates)}"/>'
    return _svg([*drawn, line], "latency at each percentile")


def _percentile_x(nine: float, nines: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - 20) * nine / nines


def _latency_y(latency: float, top: float) -> float:
    return (_HEIGHT - _BOTTOM) * (1 - latency / top) if top else _HEIGHT - _BOTTOM


def _axes(top: str, bottom: str) -> str:
    base = _HEIGHT - _BOTTOM
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{base}" y2="{base}"/>'
        f'<text x="{_LEFT - 6}" y="10" text-anchor="end">{top}</text>'
        f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">{bottom}</text>'
    )


def _label(x: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT - 6}">{text}</text>'


def _svg(drawn: list[str], title: str) -> str:
    box = f"0 0 {_WIDTH:g} {_HEIGHT:g}"
    return f'<svg viewBox="{box}" role="img" aria-label="{title}">{"".join(drawn)}</svg>'
