"""Text decoders of transformers, trained to tell the next word."""

from __future__ import annotations

from typing import Any

import transformers as hf

from conformance.architectures.case import Case, Sizes, padding_mask, without_dropout
from conformance.architectures.case import words as word_numbers


def decoder_sizes(s: Sizes) -> dict[str, Any]:
    """The settings that configs of this family share."""
    return {
        "vocab_size": s.words,
        "hidden_size": s.hidden,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "intermediate_size": s.inner,
        "max_position_embeddings": 4 * s.length,
        "use_cache": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def next_words(module: Any, s: Sizes, mask: bool = True) -> Case:
    ids = word_numbers(s)
    kwargs = {"input_ids": ids, "labels": ids}
    return Case(module, (), {**kwargs, "attention_mask": padding_mask(s)} if mask else kwargs)


def gpt2_config(s: Sizes) -> Any:
    sizes = {"n_embd": s.hidden, "n_layer": s.layers, "n_head": s.heads, "n_positions": 512}
    return hf.GPT2Config(
        vocab_size=s.words, **sizes, use_cache=False, bos_token_id=1, eos_token_id=2
    )


def gpt2(s: Sizes) -> Case:
    return next_words(hf.GPT2LMHeadModel(without_dropout(gpt2_config(s))), s, mask=False)


def gpt2_padded(s: Sizes) -> Case:
    return next_words(hf.GPT2LMHeadModel(without_dropout(gpt2_config(s))), s)


def gpt2_dropout(s: Sizes) -> Case:
    case = next_words(hf.GPT2LMHeadModel(gpt2_config(s)), s, mask=False)
    return Case(case.module, (), case.kwargs, random=True)


def gpt_neox(s: Sizes) -> Case:
    """Parallel attention and feed-forward, rotary positions on a part of each head."""
    config = hf.GPTNeoXConfig(**decoder_sizes(s))
    return next_words(hf.GPTNeoXForCausalLM(without_dropout(config)), s)


def llama(s: Sizes) -> Case:
    """Keys and values shared by two heads."""
    config = hf.LlamaConfig(**decoder_sizes(s), num_key_value_heads=s.heads // 2)
    return next_words(hf.LlamaForCausalLM(config), s, mask=False)


def llama_padded(s: Sizes) -> Case:
    config = hf.LlamaConfig(**decoder_sizes(s), num_key_value_heads=s.heads // 2)
    return next_words(hf.LlamaForCausalLM(config), s)


def mistral(s: Sizes) -> Case:
    """Attention to a window of words."""
    sizes = {"num_key_value_heads": s.heads // 2, "sliding_window": s.length // 2}
    return next_words(hf.MistralForCausalLM(hf.MistralConfig(**decoder_sizes(s), **sizes)), s)


def qwen2(s: Sizes) -> Case:
    config = hf.Qwen2Config(**decoder_sizes(s), num_key_value_heads=s.heads // 2)
    return next_words(hf.Qwen2ForCausalLM(config), s)


def qwen3(s: Sizes) -> Case:
    """Normalised queries and keys."""
    sizes = {"num_key_value_heads": s.heads // 2, "head_dim": s.hidden // s.heads}
    return next_words(hf.Qwen3ForCausalLM(hf.Qwen3Config(**decoder_sizes(s), **sizes)), s)


def gemma2(s: Sizes) -> Case:
    """Bounded scores (tanh), norms before and after, local and global attention in turns."""
    sizes = {"num_key_value_heads": s.heads // 2, "head_dim": s.hidden // s.heads}
    sizes |= {"sliding_window": s.length // 2}
    config = hf.Gemma2Config(**decoder_sizes(s), **sizes)
    config._attn_implementation = "eager"  # the only one with bounded scores
    return next_words(hf.Gemma2ForCausalLM(config), s)


def gemma3(s: Sizes) -> Case:
    sizes = {"num_key_value_heads": s.heads // 2, "head_dim": s.hidden // s.heads}
    sizes |= {"sliding_window": s.length // 2}
    config = hf.Gemma3TextConfig(**decoder_sizes(s), **sizes)
    return next_words(hf.Gemma3ForCausalLM(config), s)


def phi(s: Sizes) -> Case:
    config = hf.PhiConfig(**decoder_sizes(s))
    return next_words(hf.PhiForCausalLM(without_dropout(config)), s)


def opt(s: Sizes) -> Case:
    """Learned positions, counted from the mask."""
    sizes = decoder_sizes(s)
    sizes |= {"ffn_dim": sizes.pop("intermediate_size"), "word_embed_proj_dim": s.hidden}
    return next_words(hf.OPTForCausalLM(without_dropout(hf.OPTConfig(**sizes))), s)


def mamba(s: Sizes) -> Case:
    """A state-space model: a convolution over time and a selective scan."""
    sizes = {"hidden_size": s.hidden, "num_hidden_layers": s.layers, "state_size": 8}
    config = hf.MambaConfig(
        vocab_size=s.words, **sizes, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2
    )
    return next_words(hf.MambaForCausalLM(config), s, mask=False)


def mixtral(s: Sizes) -> Case:
    """Two of four experts for each word, with the loss that balances them."""
    sizes = {"num_key_value_heads": s.heads // 2, "num_local_experts": 4}
    config = hf.MixtralConfig(**decoder_sizes(s), **sizes, output_router_logits=True)
    config._experts_implementation = "batched_mm"
    return next_words(hf.MixtralForCausalLM(config), s)


TEXT_DECODERS = (
    gpt2, gpt2_padded, gpt2_dropout, gpt_neox, llama, llama_padded, mistral, qwen2, qwen3, gemma2,
    gemma3, phi, opt, mamba, mixtral,
)  # fmt: skip
