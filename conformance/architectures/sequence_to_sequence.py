"""Encoders with decoders of transformers: translation and speech."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from conformance.architectures.case import Case, Sizes, padding_mask, without_dropout
from conformance.architectures.case import words as word_numbers


def translation(module: Any, s: Sizes) -> Case:
    labels = word_numbers(s, s.batch, s.length // 2)
    kwargs = {"attention_mask": padding_mask(s), "labels": labels}
    return Case(module, (), {"input_ids": word_numbers(s), **kwargs})


def t5_config(s: Sizes, **more: Any) -> Any:
    sizes = {"d_model": s.hidden, "d_ff": s.inner, "d_kv": s.hidden // s.heads}
    return hf.T5Config(
        vocab_size=s.words,
        **sizes,
        num_layers=s.layers,
        num_heads=s.heads,
        use_cache=False,
        decoder_start_token_id=0,
        **more,
    )


def t5(s: Sizes) -> Case:
    """Biases of relative positions, shared by all layers."""
    return translation(hf.T5ForConditionalGeneration(without_dropout(t5_config(s))), s)


def t5_gated(s: Sizes) -> Case:
    config = without_dropout(t5_config(s, feed_forward_proj="gated-gelu"))
    return translation(hf.T5ForConditionalGeneration(config), s)


def two_stacks(s: Sizes) -> dict[str, Any]:
    """The settings that BART and Whisper share."""
    sizes: dict[str, Any] = {"vocab_size": s.words, "d_model": s.hidden, "use_cache": False}
    for part in ("encoder", "decoder"):
        sizes |= {f"{part}_layers": s.layers, f"{part}_attention_heads": s.heads}
        sizes[f"{part}_ffn_dim"] = s.inner
    sizes |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    return sizes


def bart(s: Sizes) -> Case:
    config = hf.BartConfig(
        **two_stacks(s), max_position_embeddings=4 * s.length, forced_eos_token_id=None
    )
    return translation(hf.BartForConditionalGeneration(without_dropout(config)), s)


def whisper_parts(s: Sizes) -> tuple[Any, torch.Tensor]:
    config = hf.WhisperConfig(
        **two_stacks(s),
        num_mel_bins=16,
        max_source_positions=2 * s.length,
        max_target_positions=4 * s.length,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    sound = torch.randn(s.batch, 16, 4 * s.length)
    return hf.WhisperForConditionalGeneration(without_dropout(config)), sound


def whisper(s: Sizes) -> Case:
    module, sound = whisper_parts(s)
    return Case(module, (sound,), {"labels": word_numbers(s)})


def whisper_scores(s: Sizes) -> Case:
    """The words so far are given, the loss is the user's own."""
    module, sound = whisper_parts(s)
    ids = word_numbers(s)

    def loss(outputs: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), ids.flatten())

    return Case(module, (), {"input_features": sound, "decoder_input_ids": ids.roll(1, 1)}, loss)


SEQUENCE_TO_SEQUENCE = (t5, t5_gated, bart, whisper, whisper_scores)
