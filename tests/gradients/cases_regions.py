"""Cases of rules/regions.py."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from tests.gradients.case import Case, normal, spread

_ROIS = np.array(
    [[0.3, 0.8, 4.1, 5.7], [1.2, 0.4, 2.1, 1.3], [-1.6, 2.2, 7.3, 9.1], [2.4, 2.2, 3.9, 4.7]]
)
_IMAGES = np.array([0, 1, 1, 0])


def _align(note: str, x: Any = None, rois: Any = _ROIS, **rest: Any) -> Case:
    options = {n: rest.pop(n) for n in ("ort", "autograd", "differences") if n in rest}
    rest = {"output_height": 2, "output_width": 3, **rest}
    x = normal(2, 3, 6, 5) if x is None else x
    return Case(
        "RoiAlign",
        lambda op, x, rois, images: op.RoiAlign(x, rois, images, **rest),
        {"x": x, "rois": rois, "images": _IMAGES[: len(rois)]},
        note,
        **options,
    )


def _pool(note: str, rois: Any, x: Any, **rest: Any) -> Case:
    return Case(
        "MaxRoiPool",
        lambda op, x, rois: op.MaxRoiPool(x, rois, pooled_shape=[2, 3], **rest),
        {"x": x, "rois": np.array(rois, np.float64)},
        note,
        wrt=("x",),
    )


CASES = [
    *(
        _align(
            f"{mode}, {ratio} points, {places}",
            spread(2, 2, 6, 5) if mode == "max" else None,
            mode=mode,
            sampling_ratio=ratio,
            coordinate_transformation_mode=places,
        )
        for mode, ratio, places in product(
            ("avg", "max"), (0, 2), ("half_pixel", "output_half_pixel")
        )
    ),
    _align("spatial_scale", spatial_scale=0.5),
    _align("one bin", output_height=1, output_width=1, sampling_ratio=3),
    _align("no regions", rois=np.zeros((0, 4))),
    _align("no regions, max", rois=np.zeros((0, 4)), mode="max"),
    _pool("", [[0, 0, 1, 3, 5], [1, 2, 0, 4, 2], [1, 1, 1, 2, 2]], spread(2, 2, 6, 5)),
    _pool("outside", [[0, -2, 3, 1, 8], [1, 7, 7, 9, 9]], spread(2, 2, 6, 5)),
    _pool("spatial_scale", [[0, 1, 2, 7, 9]], spread(2, 2, 6, 5), spatial_scale=0.5),
]
