"""The learner beside a reference policy of its own: another size, another family, a critic. By plain torch."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
import torch
import transformers
from plain_backend import plain_trainer
from responses import response, some_groups

from overlap.config.fields import Config, ModelConfig
from overlap.config.learn import CriticConfig, LearnConfig
from overlap.core.errors import ConfigError
from overlap.learner.kl import KL_ESTIMATES
from overlap.learner.micro_batch import PromptGroup
from overlap.learner.trainer import RankTrainer
from overlap.policy.tiny import make_tiny_policy


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    return make_tiny_policy(tmp_path_factory.mktemp("large"), seed=5, layers=3, hidden=96)


@pytest.fixture(scope="module")
def sliding(tmp_path_factory) -> Path:
    """Of another family, whose attention knows no packed rows, with a vocabulary padded further than the policy's."""
    sizes = {"vocab_size": 272, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16,
             "num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 8}  # fmt: skip
    path = tmp_path_factory.mktemp("mistral")
    transformers.MistralForCausalLM(transformers.MistralConfig(**sizes)).save_pretrained(path)
    return path


@pytest.fixture
def trainer(tiny, monkeypatch):
    def make(reference=None, critic=None, policy=tiny, **learn) -> RankTrainer:
        torch.manual_seed(0)
        made = {"lr": 1e-3, "grad_clip": 1e6, "micro_batch_tokens": 4096, "kl_coef": 1.0, "advantage": "none"} | learn
        cfg = Config(
            model=ModelConfig(dtype="float32", prompt_tokens=32, response_tokens=32),
            learn=LearnConfig(**(made | ({"reference": str(reference)} if reference else {}))),
            critic=CriticConfig(**(critic or {})),
        )
        return plain_trainer(monkeypatch, cfg, policy, 100, reference)

    return make


def log_ratios(policy: Path, reference: Path, groups) -> list[float]:
    """d of all response tokens by transformers alone, response by response."""
    load = transformers.AutoModelForCausalLM.from_pretrained
    models, found = [load(path, dtype=torch.float32) for path in (policy, reference)], []
    for group in groups:
        for one in group.responses:
            ids, start = torch.tensor([[*group.prompt, *one.tokens]]), len(group.prompt)
            with torch.no_grad():
                scores = [model(ids).logits[0, start - 1 : -1].log_softmax(-1) for model in models]
            each = [score.gather(-1, ids[0, start:, None])[:, 0] for score in scores]
            found += (each[0] - each[1]).tolist()
    return found


@pytest.mark.parametrize("name", ["large", "sliding"])
@pytest.mark.parametrize(("where", "estimator"), [("reward", "k1"), ("loss", "k3")])
def test_a_reference_of_another_size_is_read_as_transformers_reads_it(request, trainer, tiny, name, where, estimator):
    reference, groups = request.getfixturevalue(name), some_groups(groups=2)
    made = trainer(reference, kl_in=where)
    ratios = torch.tensor(log_ratios(tiny, reference, groups))
    slow = KL_ESTIMATES[estimator](ratios, torch.zeros(())).mean().item()
    assert made.step(groups)["kl"] == pytest.approx(slow, rel=1e-3)
    assert abs(slow) > 0.01


def test_padding_that_a_reference_does_not_have_is_taken_for_its_last_token(trainer, tiny, tmp_path):
    """Sizes of one family are padded to different vocabularies, and an engine may sample what no token stands for."""
    padded = make_tiny_policy(tmp_path / "padded", vocab=320)
    made = trainer(tiny, policy=padded)
    tokens = [7, 300, 9]
    d = made.step([PromptGroup(array("i", PROMPT), (response(tokens, 0.0),))])["kl"]
    known = trainer(tiny)._reference.policy
    ids = torch.tensor([[*PROMPT, *(min(token, 258) for token in tokens)]])
    with torch.no_grad():
        slow = known(input_ids=ids).logits[0, 1:-1].log_softmax(-1).gather(-1, ids[0, 2:, None])
    own = trainer(tiny, policy=padded).logprobs([*PROMPT, *tokens])[1:]
    ratios = torch.tensor(own) - slow[:, 0]
    assert d == pytest.approx(KL_ESTIMATES["k3"](ratios, torch.zeros(())).mean().item(), rel=1e-3)


PROMPT = [65, 66]


@torch.no_grad()
def scores(model) -> torch.Tensor:
    """Log-probs [259] of the token behind the prompt."""
    found: torch.Tensor = model.policy(input_ids=torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1)
    return found


@pytest.mark.parametrize("updates", [1, 2])
def test_a_critic_is_taught_rewards_less_the_penalty_and_the_kl_is_told(trainer, tiny, large, updates):
    """The critic's target of a token is what is still to come: the reward, less the penalties from there on."""
    learn = {"advantage": "gae", "kl_in": "reward", "kl_coef": 0.5, "updates_per_step": updates}
    groups = some_groups(groups=2, advantages=(0.0, 1.0))
    told = trainer(large, critic={"lr": 1e-4}, **learn).step(groups)
    d = log_ratios(tiny, large, groups)
    targets, start = [], 0
    for one in (r for group in groups for r in group.responses):
        own = d[start : start + len(one.tokens)]
        targets += [one.advantage - 0.5 * sum(own[t:]) for t in range(len(own))]
        start += len(own)
    assert told["critic/return_mean"] == pytest.approx(sum(targets) / len(targets), rel=1e-3)
    if updates == 1:  # later updates tell that of the policy as it is
        assert told["kl"] == pytest.approx(sum(d) / len(d), rel=1e-3)


def test_a_reference_that_cannot_be_loaded_is_named(trainer, tmp_path):
    with pytest.raises(ConfigError, match=r"^learn\.reference='.*': cannot be loaded"):
        trainer(tmp_path)
