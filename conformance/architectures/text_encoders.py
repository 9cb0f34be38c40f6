"""Text encoders of transformers: masked words, replaced words, classes of words and sequences."""

from __future__ import annotations

from typing import Any

import transformers as hf

from conformance.architectures.case import Case, Sizes, classes, padding_mask, without_dropout
from conformance.architectures.case import words as word_numbers


def encoder_sizes(s: Sizes) -> dict[str, Any]:
    """The settings that configs of this family share."""
    return {
        "vocab_size": s.words,
        "hidden_size": s.hidden,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "intermediate_size": s.inner,
        "max_position_embeddings": 4 * s.length,
        "pad_token_id": 0,
    }


def masked_words(module: Any, s: Sizes) -> Case:
    ids, mask = word_numbers(s), padding_mask(s)
    labels = ids.masked_fill(mask == 0, -100)
    return Case(module, (), {"input_ids": ids, "attention_mask": mask, "labels": labels})


def bert(s: Sizes) -> Case:
    config = without_dropout(hf.BertConfig(**encoder_sizes(s)))
    return masked_words(hf.BertForMaskedLM(config), s)


def bert_classifier(s: Sizes) -> Case:
    """With segments, and scores of two sentences' relation."""
    config = without_dropout(hf.BertConfig(**encoder_sizes(s), num_labels=s.labels))
    ids, mask = word_numbers(s), padding_mask(s)
    kwargs = {"attention_mask": mask, "token_type_ids": mask.flip(1) * (ids % 2)}
    return Case(hf.BertForSequenceClassification(config), (ids,), {**kwargs, "labels": classes(s)})


def bert_eager_attention(s: Sizes) -> Case:
    """Attention written as products and a softmax."""
    config = without_dropout(hf.BertConfig(**encoder_sizes(s)))
    config._attn_implementation = "eager"
    return masked_words(hf.BertForMaskedLM(config), s)


def roberta(s: Sizes) -> Case:
    sizes = encoder_sizes(s) | {"pad_token_id": 1}
    config = without_dropout(hf.RobertaConfig(**sizes, type_vocab_size=1))
    return masked_words(hf.RobertaForMaskedLM(config), s)


def distilbert(s: Sizes) -> Case:
    sizes = {"dim": s.hidden, "hidden_dim": s.inner, "n_heads": s.heads, "n_layers": s.layers}
    config = without_dropout(hf.DistilBertConfig(vocab_size=s.words, **sizes, num_labels=s.labels))
    kwargs = {"attention_mask": padding_mask(s), "labels": classes(s)}
    return Case(hf.DistilBertForSequenceClassification(config), (word_numbers(s),), kwargs)


def deberta(s: Sizes) -> Case:
    """Version 2: relative positions, queries and keys of positions."""
    config = without_dropout(
        hf.DebertaV2Config(
            **encoder_sizes(s),
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=8,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            position_biased_input=False,
        )
    )
    return masked_words(hf.DebertaV2ForMaskedLM(config), s)


def electra(s: Sizes) -> Case:
    """The discriminator: which words were replaced."""
    config = without_dropout(hf.ElectraConfig(**encoder_sizes(s), embedding_size=s.hidden // 2))
    ids = word_numbers(s)
    kwargs = {"attention_mask": padding_mask(s), "labels": (ids % 2).float()}
    return Case(hf.ElectraForPreTraining(config), (ids,), kwargs)


def modernbert(s: Sizes) -> Case:
    """Rotary positions, gated layers, local and global attention in turns."""
    config = without_dropout(
        hf.ModernBertConfig(
            **encoder_sizes(s),
            global_attn_every_n_layers=2,
            local_attention=8,
            bos_token_id=1,
            eos_token_id=2,
            cls_token_id=1,
            sep_token_id=2,
        )
    )
    return masked_words(hf.ModernBertForMaskedLM(config), s)


def albert(s: Sizes) -> Case:
    """One layer's weights, used by every layer."""
    config = without_dropout(hf.AlbertConfig(**encoder_sizes(s), embedding_size=s.hidden // 2))
    return masked_words(hf.AlbertForMaskedLM(config), s)


def bert_tokens(s: Sizes) -> Case:
    """Classes of words, with dropout."""
    config = hf.BertConfig(**encoder_sizes(s), num_labels=s.labels)
    kwargs = {"attention_mask": padding_mask(s), "labels": classes(s, s.batch, s.length)}
    return Case(hf.BertForTokenClassification(config), (word_numbers(s),), kwargs, random=True)


TEXT_ENCODERS = (
    bert, bert_classifier, bert_eager_attention, roberta, distilbert, deberta, electra, modernbert,
    albert, bert_tokens,
)  # fmt: skip
