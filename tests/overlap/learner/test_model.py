"""The policy as the learner reads it: every layout, every family that it takes, and checkpoints that it refuses."""

from __future__ import annotations

import pytest
import torch
import transformers
from checkpoints import edited
from responses import each_alone, some_groups

from overlap.core.errors import ConfigError
from overlap.learner.attention import NAME, _attend, _attend_small
from overlap.learner.micro_batch import SplitConfig, mini_batches
from overlap.learner.model import choose_attention, load_policy, plain
from overlap.learner.tensors import to_tensors

CPU = torch.device("cpu")


def load(path, dtype=torch.float32, temperature=1.0):
    return load_policy(path, dtype=dtype, temperature=temperature, device=CPU)


def logprobs_and_gradient(model, groups, budget, padded=False, ranks=1):
    """Log-probs by (first target tokens ...), and the gradient of their advantage-weighted sum, over all ranks."""
    model.zero_grad()
    found = []
    (mini,) = mini_batches(groups, SplitConfig(1, ranks, budget, 64, padded))
    for micro in (micro for rank in mini.ranks for micro in rank if micro.counts):
        t = to_tensors(micro)
        logprobs, _ = model(t)
        (logprobs * t.sampled.advantages).sum().backward()
        found += list(zip(t.targets.tolist(), t.sampled.advantages.tolist(), logprobs.tolist(), strict=True))
    return sorted(found), torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.promise("learner")
@pytest.mark.parametrize(
    ("attention", "share", "budget", "padded", "masked", "ranks"),
    [
        (NAME, True, 10**6, False, True, 1),
        (NAME, True, 10**6, False, False, 1),
        (NAME, True, 60, False, True, 1),
        (NAME, True, 60, False, False, 2),
        (NAME, False, 200, False, True, 1),
        (NAME, False, 200, False, False, 2),
        (NAME, False, 200, True, False, 1),
        ("sdpa", False, 200, True, True, 1),
    ],
)
def test_no_layout_changes_the_log_probs_and_gradients_of_separate_sequences(
    tiny, monkeypatch, attention, share, budget, padded, masked, ranks
):
    for module in ("tensors", "micro_batch"):
        monkeypatch.setattr(f"overlap.learner.{module}.fits_mask", lambda *_: masked)
    model = load(tiny, temperature=0.8)
    groups = some_groups()
    model.policy.set_attn_implementation("eager")
    expected, gradient = logprobs_and_gradient(model, groups, 1)
    model.policy.set_attn_implementation(attention)
    if not share:
        groups = each_alone(groups)
    got, got_gradient = logprobs_and_gradient(model, groups, budget, padded, ranks)
    assert torch.allclose(torch.tensor(got), torch.tensor(expected), atol=2e-5)
    assert (got_gradient - gradient).norm() < 1e-5 * gradient.norm()


def test_small_attention_in_bfloat16_is_attention():
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in ((3, 4, 7, 16), (3, 2, 12, 16), (3, 2, 12, 16)))
    visible = torch.rand(3, 1, 7, 12) < 0.5
    visible[..., 0] = True
    for mask, keys in ((visible, 12), (None, 7)):
        expected = _attend(q, k[:, :, :keys], v[:, :, :keys], mask, None)
        got = _attend_small(q, k[:, :, :keys], v[:, :, :keys], mask, 0.25).transpose(1, 2).flatten(0, 1)
        assert torch.allclose(got, expected, atol=1e-6)
        upstream = torch.randn_like(got)
        for mine, theirs in zip(
            torch.autograd.grad(got, (q, k, v), upstream),
            torch.autograd.grad(expected, (q, k, v), upstream),
            strict=True,
        ):
            assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.promise("logprobs")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_are_those_of_transformers_at_the_temperature(tiny, dtype):
    model = load(tiny, dtype, 0.5)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=dtype)
    tokens = list(range(40, 90))
    with torch.no_grad():
        logits = reference(torch.tensor([tokens])).logits[0, :-1].float() / 0.5
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]
        got = model(plain(tokens, CPU))[0]
    assert torch.allclose(got, expected, atol=1e-4 if dtype == torch.float32 else 0.1)


def saved(path, family, **changes):
    sizes = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16,
    }  # fmt: skip
    config = getattr(transformers, f"{family}Config")(**sizes, **changes)
    getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(path)
    return load(path)


@pytest.mark.parametrize(
    ("family", "changes", "shares"),
    [("Mistral", {"sliding_window": 4}, False), ("Qwen2", {"tie_word_embeddings": False}, True)],
)
def test_an_untied_head_shares_its_prompts_and_a_sliding_window_keeps_its_own_attention(
    tmp_path, family, changes, shares
):
    model = saved(tmp_path, family, **changes)
    assert choose_attention(model, CPU) == shares
    assert model.policy.config._attn_implementation == (NAME if shares else "sdpa")


def test_a_family_that_changes_its_logits_is_refused(tmp_path):
    model = saved(tmp_path, "Gemma2", final_logit_softcapping=0.01, query_pre_attn_scalar=16)
    with pytest.raises(ConfigError, match=r"model\.policy=.*Gemma2ForCausalLM changes its logits"):
        choose_attention(model, CPU)


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("model.norm.weight", None, r"1 tensors are missing from its files, such as model\.norm\.weight"),
        ("model.layers.0.self_attn.q_proj.bias", [128], "1 tensors of its files belong to no layer, .*q_proj.bias"),
        ("model.layers.2.mlp.up_proj.weight", [128, 64], "1 tensors of its files belong to no layer, .*layers.2.mlp"),
        ("model.norm.weight", [63], "tensors of other sizes than its config.json means"),
        ("lm_head.weight", [259, 64], "differs from its embedding, but its config.json ties the two"),
    ],
)
def test_a_checkpoint_that_would_become_another_model_is_refused(tiny, tmp_path, name, shape, says):
    """transformers would take random numbers for what is missing, and leave out what has no place."""
    with pytest.raises(ConfigError, match=says):
        load(edited(tiny, tmp_path / "other", {name: shape and torch.ones(shape)}))


def test_what_every_model_makes_anew_may_stand_in_a_checkpoint(tiny, tmp_path):
    load(edited(tiny, tmp_path / "old", {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16)}))


def test_dropout_is_off(tmp_path):
    model = saved(tmp_path, "Llama", attention_dropout=0.5)
    tokens = plain(list(range(30)), CPU)
    assert torch.equal(model(tokens)[0], model(tokens)[0])
