"""Every architecture by its name."""

from __future__ import annotations

import torch

from conformance.architectures.case import SIZES, Builder, Case
from conformance.architectures.convolutional import CONVOLUTIONAL
from conformance.architectures.generative import GENERATIVE
from conformance.architectures.others import OTHERS
from conformance.architectures.recurrent import RECURRENT
from conformance.architectures.sequence_to_sequence import SEQUENCE_TO_SEQUENCE
from conformance.architectures.text_decoders import TEXT_DECODERS
from conformance.architectures.text_encoders import TEXT_ENCODERS
from conformance.architectures.vision_transformers import (
    TRANSFORMERS_CONVOLUTIONS,
    VISION_TRANSFORMERS,
)

FAMILIES: dict[str, tuple[Builder, ...]] = {
    "text encoders": TEXT_ENCODERS,
    "text decoders": TEXT_DECODERS,
    "sequence to sequence": SEQUENCE_TO_SEQUENCE,
    "vision transformers": VISION_TRANSFORMERS,
    "convolutional": TRANSFORMERS_CONVOLUTIONS + CONVOLUTIONAL,
    "recurrent": RECURRENT,
    "generative": GENERATIVE,
    "others": OTHERS,
}
ARCHITECTURES = {
    builder.__name__: builder for builders in FAMILIES.values() for builder in builders
}


def build(name: str, size: str = "test", seed: int = 0) -> Case:
    """An architecture with its initial weights and its batch: the same ones for the same seed."""
    torch.manual_seed(seed)
    case = ARCHITECTURES[name](SIZES[size])
    case.module.train()
    return case
