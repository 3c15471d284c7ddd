"""A random model of 60,000 weights over bytes, made in an instant without a network: shows that all works, not how
well.

Refuses to know what it is trained for.
"""

from __future__ import annotations

from typing import Any

LAYERS, WIDTH, HEADS, CONTEXT = 2, 48, 4, 512
END = "<end>"
SEED = 0


def tokenizer() -> Any:
    """Bytes, and the end of a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate([*letters, END])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=END)


def model() -> Any:
    """A Llama whose weights come from a fixed seed; no generator moves."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=257, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, max_position_embeddings=CONTEXT,
        tie_word_embeddings=True, initializer_range=0.3, bos_token_id=None, eos_token_id=256, pad_token_id=256,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return LlamaForCausalLM(config).eval()
