"""Take the nodes out of a plan that are slower quantized than in float, as measured."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import onnx_ir as ir

from onward.compress.progress_steps import Progress
from onward.compress.quantization.node_clusters import (
    SimilarGroups,
    elements_of,
    make_clusters,
    without,
)
from onward.compress.quantization.quantization_plan import Plan, Quantizer
from onward.compress.timing import time_in_turns
from onward.graph.files import weight_bytes

CLUSTERS = 12  # variants that are timed in a round
_ROUNDS = 3
_GAIN = 0.015  # a variant must be this much faster: less is noise
_GAIN_OF_ALL = 0.15  # and this much more for each share of the weights that it makes larger
_AT_ONCE = 1 << 30  # bytes of weights of the models that take turns
_SECONDS = 0.25  # of measuring one variant

SLOWER = "slower than float here, measured"


def undo_slow(
    quantizer: Quantizer,
    plan: Plan,
    feeds: Mapping[str, Any],
    providers: Sequence[str],
    undone: MutableMapping[str, str],
    progress: Progress,
) -> Plan:
    """The plan without the clusters of nodes whose float form makes the whole model faster."""
    for turn in range(_ROUNDS):
        clusters = make_clusters(quantizer, plan, CLUSTERS)
        if len(clusters) < 2:
            return plan  # the whole plan against float: the caller measures that
        progress(f"timing {len(clusters)} kinds of nodes against float", turn, _ROUNDS)
        slower = _find_slower(quantizer, plan, clusters, feeds, providers)
        if not slower:
            return plan
        names = [name for cluster in slower for name in cluster.names]
        undone.update(dict.fromkeys(names, SLOWER))
        plan = without(plan, names)
    return plan


def _find_slower(
    quantizer: Quantizer,
    plan: Plan,
    clusters: Sequence[SimilarGroups],
    feeds: Mapping[str, Any],
    providers: Sequence[str],
) -> list[SimilarGroups]:
    """The clusters whose removal makes the model faster, alone and all together."""
    full = quantizer.write(plan)
    total = max(elements_of(quantizer.model), 1)
    ratios: dict[int, float] = {}
    step = max(1, _AT_ONCE // max(weight_bytes(full), 1) - 1)
    for start in range(0, len(clusters), step):
        part = range(start, min(start + step, len(clusters)))
        models: dict[str, ir.Model] = {"full": full}
        models |= {str(n): quantizer.write(without(plan, clusters[n].names)) for n in part}
        times = time_in_turns(models, feeds, providers=providers, seconds=_SECONDS)
        for number in part:
            wanted = _GAIN + _GAIN_OF_ALL * clusters[number].elements / total
            ratio = times[str(number)] / times["full"]
            ratios |= {number: ratio} if ratio < 1 - wanted else {}
    found = sorted(ratios, key=lambda number: ratios[number])
    return _confirm(quantizer, plan, [clusters[number] for number in found], feeds, providers)


def _confirm(
    quantizer: Quantizer,
    plan: Plan,
    slower: Sequence[SimilarGroups],
    feeds: Mapping[str, Any],
    providers: Sequence[str],
) -> list[SimilarGroups]:
    """As many of the clusters, the worst first, as are fastest to undo, measured again."""
    if not slower:
        return []
    models = {"0": quantizer.write(plan)}
    names: list[str] = []
    counts = sorted({1, (len(slower) + 1) // 2, len(slower)})
    for number, cluster in enumerate(slower, 1):
        names += cluster.names
        if number in counts:
            models[str(number)] = quantizer.write(without(plan, names))
    times = time_in_turns(models, feeds, providers=providers, seconds=2 * _SECONDS)
    best = min(times, key=lambda key: times[key])
    return list(slower[: int(best)]) if times[best] < times["0"] * (1 - _GAIN / 2) else []
