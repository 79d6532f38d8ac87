"""Adapters: what is frozen, what is trained, and what is published and saved of it. By plain torch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import peft
import pytest
import torch
import transformers
from responses import some_groups
from safetensors.torch import load_file

from overlap.config.learn import LearnConfig
from overlap.core.errors import ConfigError
from overlap.learner.lora import FOLDER, adapt, save_adapter, whole
from overlap.learner.trainer import RankTrainer
from overlap.placement.activations import decoder_shape, trained_parameters
from overlap.policy.check import adapted_layers

RANK = 4
PROBE = list(range(30, 80))


@pytest.fixture(scope="module")
def biased(tmp_path_factory) -> Path:
    """Of another family, with an output layer of its own."""
    sizes = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
             "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False}  # fmt: skip
    path = tmp_path_factory.mktemp("qwen")
    transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes)).save_pretrained(path)
    return path


@pytest.fixture
def adapted(trainer):
    return partial(trainer, lora_rank=RANK, lr=1e-2)


def moved(trainer: RankTrainer, scale: float = 0.1) -> RankTrainer:
    """Adapters as after some training: both halves are something."""
    made = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for adapter in trainer.adapters.values():
            adapter.up.copy_(scale * torch.randn(adapter.up.shape, generator=made))
    return trainer


def base_tensors(policy: Path, dtype=torch.float32):
    return dict(transformers.AutoModelForCausalLM.from_pretrained(policy, dtype=dtype).named_parameters())


def logprobs_of(model, temperature: float = 1.0):
    with torch.no_grad():
        scores = (model(torch.tensor([PROBE])).logits[0, :-1].float() / temperature).log_softmax(-1)
    return scores[range(len(PROBE) - 1), PROBE[1:]]


def test_adapters_begin_as_nothing_beside_every_linear_layer_of_the_decoder(adapted, tiny):
    made = adapted()
    assert {name.split(".")[-2] for name in made.adapters} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    assert len(made.adapters) == 2 * 7
    assert {name.split(".")[-2] for name in made.adapters} == set(
        adapted_layers(tiny)
    )  # which the engine has places for
    assert all(a.down.shape[0] == a.up.shape[1] == RANK and a.scale == 2.0 for a in made.adapters.values())
    assert torch.equal(torch.tensor(made.logprobs(PROBE)), torch.tensor(adapted(lora_rank=0).logprobs(PROBE)))
    published = dict(made.full_tensors())
    base = base_tensors(tiny)
    assert published.keys() == base.keys()
    assert all(torch.equal(published[name], base[name]) for name in base)


def test_only_adapters_are_trained_and_the_weights_stay_bit_for_bit(adapted, tiny):
    made = adapted(weight_decay=0.1, kl_coef=0.1)
    before = {name: p.detach().clone() for name, p in made.model.module.named_parameters()}
    for seed in range(3):
        made.step(some_groups(seed))
    trained = {id(p) for group in made.model.optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for a in made.adapters.values() for p in (a.down, a.up)}
    assert len(made.model.optimizer.state) == len(trained)
    for name, p in made.model.module.named_parameters():
        if id(p) in trained:
            assert not torch.equal(p, before[name]), name
        else:
            assert torch.equal(p, before[name]), name
            assert (p.grad, p.requires_grad) == (None, False), name
    shape = decoder_shape(transformers.AutoConfig.from_pretrained(tiny).to_dict())
    adapted = sum(p.numel() for a in made.adapters.values() for p in (a.down, a.up))
    assert trained_parameters(shape, 10**9, RANK) == adapted


@pytest.mark.promise("lora")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_published_is_the_merge_by_hand(adapted, tiny, dtype):
    made = moved(adapted(dtype=str(dtype).removeprefix("torch.")))
    base = base_tensors(tiny, dtype)
    tensors = made.full_tensors()
    published = {name: tensor.clone() for name, tensor in tensors}
    assert published.keys() == base.keys()
    assert [(m.name, m.shape) for m in tensors.metadata] == [(n, tuple(t.shape)) for n, t in published.items()]
    assert {m.dtype for m in tensors.metadata} == {str(dtype).removeprefix("torch.")}
    for name, tensor in published.items():
        expected = base[name].detach()
        if name in made.adapters:
            a = made.adapters[name]
            product = a.up.detach().float() @ a.down.detach().float()
            expected = (expected.float() + 2.0 * product).to(dtype)
            assert not torch.equal(tensor, base[name])
        assert torch.equal(tensor, expected), name


def test_what_is_sent_is_the_adapter_by_the_names_of_its_file(adapted, tiny, tmp_path):
    made = moved(adapted())
    sent = {name: t.clone() for name, t in made.sent_tensors()}
    save_adapter(whole(made.adapters, 2), tiny, tmp_path)
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert saved.keys() == sent.keys()
    assert all(torch.equal(saved[name], sent[name]) for name in saved)


def test_the_learner_computes_what_is_published_by_the_names_of_its_checkpoint(adapted, biased):
    made = moved(adapted(policy=biased))
    published = {name: t.clone() for name, t in made.full_tensors()}
    assert published.keys() == base_tensors(biased).keys()
    assert "lm_head.weight" not in made.adapters
    assert "model.layers.0.self_attn.q_proj.bias" in published
    merged = transformers.AutoModelForCausalLM.from_pretrained(biased, dtype=torch.float32)
    before = logprobs_of(merged)
    merged.load_state_dict(published, strict=False)
    found = torch.tensor(made.logprobs(PROBE))
    assert (found - logprobs_of(merged)).abs().max() < 1e-4
    assert (found - before).abs().max() > 0.1


@pytest.mark.promise("lora")
def test_peft_loads_the_saved_adapter_onto_the_base_and_speaks_as_the_learner_does(adapted, tiny, tmp_path):
    made = moved(adapted())
    save_adapter(whole(made.adapters, 2), tiny, tmp_path / FOLDER)
    assert {file.name for file in (tmp_path / FOLDER).iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    config = peft.PeftConfig.from_pretrained(tmp_path / FOLDER)
    assert (config.r, config.lora_alpha, config.base_model_name_or_path) == (RANK, 2 * RANK, str(tiny))
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / FOLDER)
    assert made.logprobs(PROBE) == pytest.approx(logprobs_of(loaded).tolist(), abs=1e-5)
    merged = dict(loaded.merge_and_unload().named_parameters())
    for name, tensor in made.full_tensors():
        assert torch.allclose(merged[name], tensor, atol=1e-6), name


def test_the_penalty_is_against_the_policy_without_its_adapters(adapted):
    """There is no second copy: the distance is none at first, and as large as that to a copy later."""
    made, full = adapted(kl_coef=0.1), adapted(kl_coef=0.1, lora_rank=0)
    assert made._reference is None
    assert made.step(some_groups())["kl"] == pytest.approx(0.0, abs=1e-9)
    made = moved(adapted(kl_coef=0.1))
    with torch.no_grad():
        for name, tensor in made.full_tensors():
            full.model.module.policy.get_parameter(name).copy_(tensor)
    found, expected = made.step(some_groups()), full.step(some_groups())
    assert expected["kl"] > 1e-3
    assert found["kl"] == pytest.approx(expected["kl"], rel=1e-3)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)


def test_a_family_with_weights_of_another_kind_is_refused(tmp_path):
    config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    with pytest.raises(ConfigError, match=r"^learn\.lora_rank=4: .*GPT2LMHeadModel h\.0\..* is no linear layer: use 0"):
        adapt(model, LearnConfig(lora_rank=4))
    assert all(p.requires_grad for p in model.parameters())
