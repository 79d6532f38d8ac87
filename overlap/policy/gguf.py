"""From the SmolLM2 GGUF file to a Hugging Face checkpoint: bf16 safetensors, tokenizer, chat template.

transformers unpacks the Llama model, whose weights are in 4- and 8-bit blocks. Its tokenizer of the file splits runs of
blanks otherwise than SmolLM2's own, so the byte-level BPE is taken over field by field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overlap.core.errors import ConfigError

_CONTROL_TOKEN = 3
"""GGUF's token type of a special token."""


def convert_gguf(gguf_path: Path, folder: Path) -> None:
    """Writes the checkpoint of ``gguf_path`` into the existing ``folder``."""
    import torch
    from gguf import GGUFReader
    from transformers import GenerationConfig, GgufConfig, LlamaForCausalLM

    whole = GgufConfig(dequantize=True)
    model = LlamaForCausalLM.from_pretrained(
        gguf_path.parent, gguf_file=gguf_path.name, dtype=torch.bfloat16, quantization_config=whole
    )
    config = model.config
    config.rms_norm_eps = round(config.rms_norm_eps, 12)  # from a float32
    ids = {f"{name}_token_id": getattr(config, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(folder)
    _tokenizer({name: field.contents() for name, field in GGUFReader(gguf_path).fields.items()}).save_pretrained(folder)


def _tokenizer(fields: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if (kind := (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"])) != ("gpt2", "smollm"):
        raise ConfigError("model.policy", kind, "only the tokenizer of SmolLM is known here")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    # "smollm": every digit on its own, then GPT-2's split.
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{f"{ours}_token": tokens[fields[f"tokenizer.ggml.{theirs}_token_id"]] for ours, theirs in named.items()},
        extra_special_tokens=control,
        chat_template=fields["tokenizer.chat_template"],
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
