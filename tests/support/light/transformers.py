"""Stands for the real library in processes whose start is tested, not what they load: that takes 0.1 s, and not 6.

Put this folder on the PYTHONPATH of such a process. Any checkpoint directory is a model with a tokenizer of one token.
"""

from __future__ import annotations

from typing import Any


class AutoConfig:
    model_type = "light"
    hidden_size = num_hidden_layers = num_attention_heads = vocab_size = 1

    @classmethod
    def from_pretrained(cls, path: Any, **_: Any) -> AutoConfig:
        return cls()

    def get_text_config(self) -> AutoConfig:
        return self


MODEL_FOR_CAUSAL_LM_MAPPING = {AutoConfig: None}


class AutoTokenizer:
    chat_template = None

    @classmethod
    def from_pretrained(cls, path: Any, **_: Any) -> AutoTokenizer:
        return cls()

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [0]}
