"""Initial weights: how each layer's tensor is drawn before training.

Each function takes a random generator and a shape, and returns a float32 tensor. Shapes are those
of torch, (outputs, inputs, *kernel), from which the fans are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Initialization = Callable[[np.random.Generator, Shape], Array]

_TRUNCATED_AT = 2.0  # standard deviations, as in TensorFlow


def zeros(rng: np.random.Generator, shape: Shape) -> Array:
    """0 everywhere: biases."""
    return np.zeros(shape, np.float32)


def ones(rng: np.random.Generator, shape: Shape) -> Array:
    """1 everywhere: scales of normalisations."""
    return np.ones(shape, np.float32)


def normal(std: float) -> Initialization:
    """Normal with mean 0: GPT-2's 0.02."""

    def draw(rng: np.random.Generator, shape: Shape) -> Array:
        return np.multiply(rng.standard_normal(shape, np.float32), np.float32(std))

    return draw


def truncated_normal(std: float) -> Initialization:
    """Normal with mean 0, values beyond two standard deviations drawn again: BERT's 0.02.

    >>> drawn = truncated_normal(0.02)(np.random.default_rng(0), (1000, 100))
    >>> float(abs(drawn).max()) <= 0.04, round(float(drawn.std()) / 0.02, 2)
    (True, 0.88)
    """

    def draw(rng: np.random.Generator, shape: Shape) -> Array:
        drawn = rng.standard_normal(math.prod(shape), np.float32)
        while (beyond := np.flatnonzero(abs(drawn) > _TRUNCATED_AT)).size:
            drawn[beyond] = rng.standard_normal(beyond.size, np.float32)
        return (drawn * np.float32(std)).reshape(shape)

    return draw


def uniform(bound: float) -> Initialization:
    """Uniform from -bound to bound."""

    def draw(rng: np.random.Generator, shape: Shape) -> Array:
        return (rng.random(shape, np.float32) * 2 - 1) * np.float32(bound)

    return draw


def he_normal(rng: np.random.Generator, shape: Shape) -> Array:
    """std = sqrt(2 / fan in), before a Relu (He et al. 2015, and the U-Net paper)."""
    return normal(math.sqrt(2 / fans(shape)[0]))(rng, shape)


def he_normal_out(rng: np.random.Generator, shape: Shape) -> Array:
    """std = sqrt(2 / fan out), He's rule for the backward pass: torchvision's ResNet, MobileNet."""
    return normal(math.sqrt(2 / fans(shape)[1]))(rng, shape)


def he_normal_transposed(rng: np.random.Generator, shape: Shape) -> Array:
    """std = sqrt(2 / fan in) of a transposed convolution with stride 2, (inputs, outputs, *kernel).

    An output reads one quarter of the kernel.
    """
    return normal(math.sqrt(2 / (shape[0] * math.prod(shape[2:]) / 4)))(rng, shape)


def he_uniform(rng: np.random.Generator, shape: Shape) -> Array:
    """Uniform with He's variance 2 / fan in: SqueezeNet."""
    return uniform(math.sqrt(6 / fans(shape)[0]))(rng, shape)


def xavier_uniform(rng: np.random.Generator, shape: Shape) -> Array:
    """Uniform with variance 2 / (fan in + fan out) (Glorot and Bengio 2010): transformers."""
    return uniform(math.sqrt(6 / sum(fans(shape))))(rng, shape)


def torch_linear(rng: np.random.Generator, shape: Shape) -> Array:
    """Uniform within 1 / sqrt(fan in): what torch gives a linear layer."""
    return uniform(1 / math.sqrt(fans(shape)[0]))(rng, shape)


def lecun_normal(rng: np.random.Generator, shape: Shape) -> Array:
    """Truncated normal with std sqrt(1 / fan in): the patches of ViT."""
    return truncated_normal(math.sqrt(1 / fans(shape)[0]))(rng, shape)


def stacked(draw_one: Initialization, *parts: int) -> Initialization:
    """Several matrices in one tensor, (*others, rows, columns), each drawn by itself.

    `parts` divide the rows: the four gates of an LSTM, or q, k and v of an attention.

    >>> stacked(orthogonal, 4, 4)(np.random.default_rng(0), (2, 8, 4)).shape
    (2, 8, 4)
    """

    def draw(rng: np.random.Generator, shape: Shape) -> Array:
        *others, _, columns = shape
        drawn = [draw_one(rng, (rows, columns)) for _ in np.ndindex(*others) for rows in parts]
        return np.concatenate(drawn).reshape(shape)

    return draw


def orthogonal(rng: np.random.Generator, shape: Shape) -> Array:
    """A random orthogonal square matrix (Saxe et al. 2014): recurrent weights."""
    q, r = np.linalg.qr(rng.standard_normal(shape))
    return np.asarray(q * np.sign(np.diag(r)), np.float32)


def fans(shape: Shape) -> tuple[int, int]:
    """How many inputs an output has, and how many outputs an input has.

    >>> fans((64, 3, 7, 7))
    (147, 3136)
    """
    kernel = math.prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel
