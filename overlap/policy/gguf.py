"""From the SmolLM2 GGUF file to a Hugging Face checkpoint: bf16 safetensors, tokenizer, chat template.

The file holds a Llama model in llama.cpp's names and row order, in 4- and 8-bit blocks, and a byte-level BPE.
Both are taken over field by field, so that neither llama.cpp nor accelerate is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from overlap.core.errors import ConfigError

_CONTROL_TOKEN = 3
"""GGUF's token type of a special token."""
_GLOBAL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(gguf_path: Path, folder: Path) -> None:
    """Writes the checkpoint of ``gguf_path`` into the existing ``folder``."""
    import torch
    from gguf import GGUFReader
    from safetensors.torch import save_file
    from transformers import GenerationConfig, LlamaForCausalLM

    reader = GGUFReader(gguf_path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(fields)
    weights = dict(_weights(reader, fields))
    with torch.device("meta"):  # named_parameters lists the head, which is tied to the embedding, once
        wanted = {name: weight.shape for name, weight in LlamaForCausalLM(config).named_parameters()}
    if wrong := set(wanted.items()) ^ {(name, weight.shape) for name, weight in weights.items()}:
        raise ConfigError("model.policy", str(gguf_path), f"not the model expected here: {sorted(wrong)[:3]}")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    ids = {f"{name}_token_id": getattr(config, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    GenerationConfig(**ids).save_pretrained(folder)
    _tokenizer(fields).save_pretrained(folder)


def _config(fields: dict[str, Any]) -> Any:
    from transformers import LlamaConfig

    shape = {name.removeprefix("llama."): value for name, value in fields.items() if name.startswith("llama.")}
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=shape["vocab_size"],
        hidden_size=shape["embedding_length"],
        intermediate_size=shape["feed_forward_length"],
        num_hidden_layers=shape["block_count"],
        num_attention_heads=shape["attention.head_count"],
        num_key_value_heads=shape["attention.head_count_kv"],
        head_dim=shape["rope.dimension_count"],
        max_position_embeddings=shape["context_length"],
        rms_norm_eps=round(shape["attention.layer_norm_rms_epsilon"], 12),
        rope_parameters={"rope_type": "default", "rope_theta": float(shape["rope.freq_base"])},
        tie_word_embeddings=True,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        dtype="bfloat16",
    )


def _weights(reader: Any, fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(name in transformers, bf16 tensor), each as soon as it is unpacked."""
    import torch
    from gguf.quants import dequantize

    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    for packed in reader.tensors:
        *block, part, kind = packed.name.split(".")
        name = f"model.layers.{block[1]}.{_BLOCK_NAMES[part]}" if block else _GLOBAL_NAMES[part]
        tensor = torch.from_numpy(dequantize(packed.data, packed.tensor_type).copy())
        if part in heads:
            # [heads * dim, hidden]: a head's rows from llama.cpp's rotary pairs to transformers' rotary halves
            tensor = tensor.unflatten(0, (heads[part], -1, 2)).transpose(1, 2).flatten(0, 2)
        yield f"{name}.{kind}", tensor.to(torch.bfloat16)


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
