# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights, one of each kind of attention.

The names in a row: the config, the model, the implementation that is right for it (sdpa has neither
softcap nor sinks), and what differs from `SMALL`."""

import functools

import torch
import transformers

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.25,  # large, so that attention is far from even
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 95,
}
BOTH = ["sliding_attention", "full_attention"]
TABLE = {
    "llama": ("Llama", "sdpa", {}),
    "mistral": ("Mistral", "sdpa", {"sliding_window": 8}),
    "qwen2": ("Qwen2", "sdpa", {"use_sliding_window": True, "sliding_window": 8,
                                "max_window_layers": 1}),
    "qwen3": ("Qwen3", "sdpa", {}),
    "gemma2": ("Gemma2", "eager", {"sliding_window": 8, "attn_logit_softcapping": 3.0,
                                   "query_pre_attn_scalar": 11, "layer_types": BOTH}),
    "gemma3": ("Gemma3", "sdpa", {"sliding_window": 8, "query_pre_attn_scalar": 11,
                                  "layer_types": BOTH}),
    "gpt_oss": ("GptOss", "eager", {"sliding_window": 8, "num_local_experts": 4,
                                    "num_experts_per_tok": 2, "layer_types": BOTH}),
    "phi3": ("Phi3", "sdpa", {"partial_rotary_factor": 0.5, "sliding_window": 11}),
    "olmo2": ("Olmo2", "sdpa", {}),
    "smollm3": ("SmolLM3", "sdpa", {"no_rope_layer_interval": 2}),
    "gpt_neox": ("GPTNeoX", "sdpa", {"rotary_pct": 0.5, "num_key_value_heads": 4}),
    "cohere2": ("Cohere2", "sdpa", {"sliding_window": 8, "layer_types": BOTH}),
    "llama4": ("Llama4", "sdpa", {"attention_chunk_size": 8, "num_local_experts": 2,
                                  "intermediate_size_mlp": 48, "use_qk_norm": True,
                                  "layer_types": ["chunked_attention", "full_attention"]}),
}  # fmt: skip


@functools.lru_cache
def model(name):
    """The model, and the implementation to compare with."""
    kind, reference, more = TABLE[name]
    suffix = "TextConfig" if kind in ("Gemma3", "Llama4") else "Config"
    config = getattr(transformers, kind + suffix)(**{**SMALL, **more})
    torch.manual_seed(7)
    made = getattr(transformers, kind + "ForCausalLM")._from_config(
        config, attn_implementation=reference
    )
    with torch.no_grad():  # some are left uninitialized or even by transformers
        for key, x in made.named_parameters():
            if key.endswith("sinks"):
                x.normal_(0, 1)
            elif x.dim() > 1:
                x.normal_(0, SMALL["initializer_range"])
    made.generation_config.pad_token_id = 0
    return made.eval(), reference


def by(made, implementation, call):
    """call() with the model's attention by `implementation`."""
    made.set_attn_implementation(implementation)
    assert made.config._attn_implementation == implementation
    return call()
