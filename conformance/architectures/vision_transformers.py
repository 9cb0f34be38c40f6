"""Vision transformers, CLIP, and convolutional models of transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import transformers as hf

from conformance.architectures.case import (
    Case,
    Sizes,
    batch_norm_sizes,
    classes,
    images,
    without_dropout,
)
from conformance.architectures.case import words as word_numbers


def image_classes(module: Any, s: Sizes, size: int | None = None) -> Case:
    return Case(module, (), {"pixel_values": images(s, size), "labels": classes(s)})


def vision_sizes(s: Sizes) -> dict[str, Any]:
    """The settings that configs of this family share."""
    return {
        "hidden_size": s.hidden,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "image_size": s.image,
        "patch_size": 8,
    }


def vit(s: Sizes) -> Case:
    config = hf.ViTConfig(**vision_sizes(s), intermediate_size=s.inner, num_labels=s.labels)
    return image_classes(hf.ViTForImageClassification(without_dropout(config)), s)


def swin(s: Sizes) -> Case:
    """Attention inside windows that are shifted, and patches that are merged."""
    config = hf.SwinConfig(
        image_size=s.image,
        patch_size=4,
        embed_dim=s.hidden // 2,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        num_labels=s.labels,
    )
    return image_classes(hf.SwinForImageClassification(without_dropout(config)), s)


def dinov2(s: Sizes) -> Case:
    config = hf.Dinov2Config(**vision_sizes(s), mlp_ratio=2, num_labels=s.labels)
    return image_classes(hf.Dinov2ForImageClassification(without_dropout(config)), s)


def clip(s: Sizes) -> Case:
    """Two encoders and the contrastive loss of their pairs."""
    s = replace(s, batch=max(s.batch, 4))  # pairs
    sizes = vision_sizes(s) | {"intermediate_size": s.inner}
    config = hf.CLIPConfig(
        text_config={
            "vocab_size": s.words,
            "hidden_size": s.hidden,
            "num_hidden_layers": s.layers,
            "num_attention_heads": s.heads,
            "intermediate_size": s.inner,
            "max_position_embeddings": 4 * s.length,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        vision_config=sizes,
        projection_dim=s.hidden // 2,
    )
    for part in (config, config.text_config, config.vision_config):
        without_dropout(part)
    ids = word_numbers(s)
    ids[:, -1] = 2  # the text's place is that of its end
    kwargs = {"input_ids": ids, "pixel_values": images(s), "return_loss": True}
    return Case(hf.CLIPModel(config), (), kwargs)


def convnext(s: Sizes) -> Case:
    """Convolutions of one channel each, 7 by 7, and a learned scale of each branch."""
    sizes = [s.channels * (1 << stage) for stage in range(3)]
    config = hf.ConvNextConfig(
        hidden_sizes=sizes, depths=[1, 1, 1], num_stages=3, num_labels=s.labels
    )
    return image_classes(hf.ConvNextForImageClassification(without_dropout(config)), s)


def resnet_transformers(s: Sizes) -> Case:
    """Bottleneck blocks, BatchNorm in training mode."""
    s = batch_norm_sizes(s)
    sizes = [s.channels * (1 << stage) for stage in range(1, 4)]
    config = hf.ResNetConfig(
        embedding_size=s.channels, hidden_sizes=sizes, depths=[1, 2, 1], num_labels=s.labels
    )
    return image_classes(hf.ResNetForImageClassification(config), s)


def mobilenet(s: Sizes) -> Case:
    """MobileNetV2 of transformers: inverted bottlenecks.

    With a smooth activation: of the many values before 52 ReLU6, some are so near to its corners
    that rounding decides about their gradient, in eager torch too.
    """
    s = replace(s, batch=max(s.batch, 16))
    config = hf.MobileNetV2Config(
        image_size=64,
        depth_multiplier=0.25,
        hidden_act="silu",
        initializer_range=0.2,  # with 0.02, all that BatchNorm sees is its epsilon
        num_labels=s.labels,
    )
    return image_classes(hf.MobileNetV2ForImageClassification(without_dropout(config)), s, 64)


def efficientnet(s: Sizes) -> Case:
    """Squeeze and excitation, SiLU."""
    s = batch_norm_sizes(s)
    config = hf.EfficientNetConfig(
        image_size=s.image,
        width_coefficient=0.5,
        depth_coefficient=0.2,
        in_channels=[32, 16, 24],
        out_channels=[16, 24, 40],
        kernel_sizes=[3, 3, 5],
        strides=[1, 2, 2],
        num_block_repeats=[1, 2, 2],
        expand_ratios=[1, 6, 6],
        hidden_dim=640,
        initializer_range=0.2,
        num_labels=s.labels,
    )
    return image_classes(hf.EfficientNetForImageClassification(without_dropout(config)), s)


VISION_TRANSFORMERS = (vit, swin, dinov2, clip)
TRANSFORMERS_CONVOLUTIONS = (convnext, resnet_transformers, mobilenet, efficientnet)
