"""A random policy small enough for tests, complete enough for the engine, the learner and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Their ids follow the 256 bytes: 256 (padding), 257, 258 (end of a turn)."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_policy(path: Path, *, seed: int = 0, vocab: int = 259, layers: int = 2, hidden: int = 64) -> Path:
    """Writes a float32 Llama checkpoint into ``path`` and returns it; equal arguments give equal weights.

    The head is tied to the embedding, 4 query heads share 2 key-value heads of width 32, the context is 2048
    tokens. Token ``i < 256`` is the byte ``i``; ``vocab`` above 259 adds plain tokens ``<|extra_N|>``.
    Leaves torch's global random state as it was. Raises ValueError where ``vocab`` has no room for all bytes.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    if vocab < 256 + len(SPECIAL_TOKENS):
        raise ValueError(f"vocab={vocab}: 256 bytes and {len(SPECIAL_TOKENS)} special tokens need 259")
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=257,
        eos_token_id=258,
        pad_token_id=256,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(torch.float32)
    path.mkdir(parents=True, exist_ok=True)
    save_file(dict(model.named_parameters()), path / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(path)
    GenerationConfig(bos_token_id=257, eos_token_id=258, pad_token_id=256).save_pretrained(path)
    _byte_tokenizer(vocab).save_pretrained(path)
    return path


def _byte_tokenizer(vocab: int) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokenizer = Tokenizer(models.BPE(vocab={written: byte for byte, written in bytes_to_unicode().items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    extra = range(vocab - tokenizer.get_vocab_size())
    tokenizer.add_tokens([AddedToken(f"<|extra_{i}|>", normalized=False) for i in extra])
    end_of_text, turn_start, turn_end = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=turn_start,
        eos_token=turn_end,
        pad_token=end_of_text,
        chat_template=CHAT_TEMPLATE,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
