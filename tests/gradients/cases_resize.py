"""Cases of rules/resize.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradients.case import Case, normal


def _resize(
    note: str,
    x: Any,
    scales: list[float] | None = None,
    sizes: list[int] | None = None,
    roi: list[float] | None = None,
    **rest: Any,
) -> Case:
    options = {n: rest.pop(n) for n in ("ort", "autograd", "dynamic") if n in rest}
    given = [
        None if roi is None else np.array(roi, np.float32),
        None if scales is None else np.array(scales, np.float32),
        None if sizes is None else np.array(sizes),
    ]
    return Case("Resize", lambda op, x: op.Resize(x, *given, **rest), {"x": x}, note, **options)


_PLACES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric")
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_X = normal(2, 3, 4, 5)
_CROP = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 10.0}
_ALIGNED = {"coordinate_transformation_mode": "align_corners"}

CASES = [
    *(
        _resize(
            f"{mode}, {places}",
            _X,
            [1, 1, 1.6, 0.7],
            mode=mode,
            coordinate_transformation_mode=places,
        )
        for mode in ("nearest", "linear", "cubic")
        for places in _PLACES
    ),
    *(
        _resize(
            f"nearest, {rounding}, {places}",
            _X,
            [1, 1, 2, 3],
            nearest_mode=rounding,
            coordinate_transformation_mode=places,
        )
        for rounding in _ROUNDINGS
        for places in ("asymmetric", "half_pixel", "align_corners")
    ),
]
for mode in ("nearest", "linear", "cubic"):
    CASES += [
        _resize(f"{mode} to sizes", _X, sizes=[2, 3, 7, 3], mode=mode),
        _resize(f"{mode}, align_corners", _X, sizes=[2, 3, 7, 3], mode=mode, **_ALIGNED),
        _resize(
            f"{mode}, align_corners and scales",
            _X,
            [1, 1, 1.6, 0.7],
            mode=mode,
            **_ALIGNED,
            ort=False,  # its last place is the last whole one; ONNX counts the part of one too
        ),
        _resize(f"{mode}, to one element", _X, sizes=[2, 3, 1, 1], mode=mode),
        _resize(f"{mode}, of one element", normal(1, 2, 1, 1), sizes=[1, 2, 3, 2], mode=mode),
        _resize(
            f"{mode}, axes",
            _X,
            [2.0, 0.6],
            mode=mode,
            axes=[-1, 2],
            antialias=int(mode != "nearest"),
        ),
        _resize(
            f"{mode}, crop",
            _X,
            sizes=[2, 3, 6, 3],
            roi=[0, 0, 0.2, -0.3, 1, 1, 0.9, 1.2],
            mode=mode,
            **_CROP,
        ),
        _resize(
            f"{mode}, crop to one element, axes and scales",
            _X,
            [0.25, 1.5],
            roi=[0.2, 0.1, 0.9, 1.2],
            axes=[2, 3],
            mode=mode,
            **_CROP,
            ort=False,  # as above
        ),
        *(
            _resize(
                f"{mode}, {policy} to {sizes}",
                _X,
                sizes=sizes,
                axes=[2, 3],
                mode=mode,
                keep_aspect_ratio_policy=policy,
            )
            for policy in ("not_larger", "not_smaller")
            for sizes in ([7, 8], [3, 5], [4, 5])
        ),
    ]
for mode in ("linear", "cubic"):
    CASES += [
        _resize(
            f"{mode}, antialias down", normal(1, 2, 7, 9), [1, 1, 0.4, 0.6], mode=mode, antialias=1
        ),
        _resize(f"{mode}, antialias to sizes", _X, sizes=[2, 3, 2, 7], mode=mode, antialias=1),
        _resize(
            f"{mode}, exclude_outside",
            _X,
            [1, 1, 1.6, 0.7],
            mode=mode,
            exclude_outside=1,
            ort=mode == "cubic",  # onnxruntime has it only of cubic
        ),
    ]
CASES += [
    _resize("cubic_coeff_a", _X, [1, 1, 1.6, 0.7], mode="cubic", cubic_coeff_a=-0.5),
    _resize(
        "cubic_coeff_a, exclude_outside, antialias",
        _X,
        [1, 1, 1.6, 0.7],
        mode="cubic",
        cubic_coeff_a=-0.5,
        exclude_outside=1,
        antialias=1,
    ),
    _resize("nearest to twice the sizes", _X, sizes=[2, 3, 8, 10]),
    _resize("nothing", _X, [1, 1, 1, 1], mode="linear"),
    *(  # onnxruntime has no linear of one axis, no cubic of five, no matrix times an empty batch
        _resize(f"{mode}, one axis", normal(5), [1.6], mode=mode, ort=mode == "nearest")
        for mode in ("nearest", "linear")
    ),
    *(
        _resize(f"{mode}, two axes", normal(4, 5), [1.6, 0.7], mode=mode)
        for mode in ("nearest", "linear", "cubic")
    ),
    *(
        _resize(f"{mode}, three axes", normal(2, 3, 5), [1, 1, 1.6], mode=mode)
        for mode in ("nearest", "linear")
    ),
    *(
        _resize(f"{mode}, five axes", normal(1, 2, 3, 4, 2), [1, 1, 1.6, 0.7, 2], mode=mode)
        for mode in ("nearest", "linear")
    ),
    _resize(
        "cubic, five axes", normal(1, 2, 3, 4, 2), [1, 1, 1.6, 0.7, 2], mode="cubic", ort=False
    ),
    _resize("nearest twice, five axes", normal(1, 2, 3, 1, 2), [1, 1, 2, 3, 1]),
    _resize("batch and channels too", normal(2, 3, 2, 2), [2, 1.5, 2, 1]),
    _resize("channels last", normal(2, 4, 5, 3), [1, 1.6, 0.7, 1], mode="linear"),
    _resize("of an empty batch", normal(0, 3, 4, 5), [1, 1, 2, 0.6], mode="linear", ort=False),
    Case(
        "Resize",
        lambda op, x, scales: op.Resize(x, None, scales, mode="linear"),
        {"x": _X, "scales": np.array([1, 1, 1.6, 0.7], np.float32)},
        "scales are fed",
        wrt=("x",),
    ),
    Case(
        "Resize",
        lambda op, x, sizes: op.Resize(x, None, None, sizes),
        {"x": _X, "sizes": np.array([2, 3, 7, 3])},
        "sizes are fed",
        fixed=("sizes",),  # ONNX refuses to infer shapes from a vector of unknown size
    ),
    Case(
        "Resize",
        lambda op, x: op.Resize(
            x, None, None, op.Concat(op.Shape(x, start=0, end=2), np.array([7, 3]), axis=0)
        ),
        {"x": _X},
        "batch and channels as they are",
    ),
    Case(
        "Resize",
        lambda op, x: op.Upsample(x, np.array([1, 1, 2, 3], np.float32), mode="nearest"),
        {"x": _X},
        "an old Upsample",
        opset=9,
    ),
]
