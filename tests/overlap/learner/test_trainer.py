"""What a rank computes in a step, also beside a reference policy of its own: another size, another family, a critic."""

from __future__ import annotations

import math
from array import array
from pathlib import Path

import pytest
import torch
import transformers
from responses import response, some_groups
from tiny_policy import make_tiny_policy

from overlap.core.errors import ConfigError, LearnerError
from overlap.learner.losses import KL_ESTIMATES, LOSSES
from overlap.learner.micro_batch import PromptGroup, mini_batches
from overlap.learner.trainer import RankTrainer


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
def against(trainer):
    def make(reference=None, policy=None, **learn) -> RankTrainer:
        given = {"kl_coef": 1.0, "advantage": "none"} | learn
        return trainer(*([policy] if policy else []), reference=reference, **given)

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


@pytest.mark.parametrize(("name", "where", "estimator"), [("large", "reward", "k1"), ("sliding", "loss", "k3")])
def test_a_reference_of_another_size_is_read_as_transformers_reads_it(request, against, tiny, name, where, estimator):
    reference, groups = request.getfixturevalue(name), some_groups(groups=2)
    made = against(reference, kl_in=where)
    ratios = torch.tensor(log_ratios(tiny, reference, groups))
    slow = KL_ESTIMATES[estimator](ratios, torch.zeros(())).mean().item()
    assert made.step(groups)["kl"] == pytest.approx(slow, rel=1e-3)
    assert abs(slow) > 0.01


def test_padding_that_a_reference_does_not_have_is_taken_for_its_last_token(against, tiny, tmp_path):
    """Sizes of one family are padded to different vocabularies, and an engine may sample what no token stands for."""
    padded = make_tiny_policy(tmp_path / "padded", vocab=320)
    made = against(tiny, policy=padded)
    tokens = [7, 300, 9]
    d = made.step([PromptGroup(array("i", PROMPT), (response(tokens, 0.0),))])["kl"]
    known = against(tiny)._reference.policy
    ids = torch.tensor([[*PROMPT, *(min(token, 258) for token in tokens)]])
    with torch.no_grad():
        slow = known(input_ids=ids).logits[0, 1:-1].log_softmax(-1).gather(-1, ids[0, 2:, None])
    own = against(tiny, policy=padded).logprobs([*PROMPT, *tokens])[1:]
    ratios = torch.tensor(own) - slow[:, 0]
    assert d == pytest.approx(KL_ESTIMATES["k3"](ratios, torch.zeros(())).mean().item(), rel=1e-3)


PROMPT = [65, 66]


@torch.no_grad()
def scores(model) -> torch.Tensor:
    """Log-probs [259] of the token behind the prompt."""
    found: torch.Tensor = model.policy(input_ids=torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1)
    return found


@pytest.mark.parametrize("updates", [1, 2])
def test_a_critic_is_taught_rewards_less_the_penalty_and_the_kl_is_told(against, tiny, large, updates):
    """The critic's target of a token is what is still to come: the reward, less the penalties from there on."""
    learn = {"advantage": "gae", "kl_in": "reward", "kl_coef": 0.5, "updates_per_step": updates}
    groups = some_groups(groups=2, advantages=(0.0, 1.0))
    told = against(large, critic={"lr": 1e-4}, **learn).step(groups)
    d = log_ratios(tiny, large, groups)
    targets, start = [], 0
    for one in (r for group in groups for r in group.responses):
        own = d[start : start + len(one.tokens)]
        targets += [one.advantage - 0.5 * sum(own[t:]) for t in range(len(own))]
        start += len(own)
    assert told["critic/return_mean"] == pytest.approx(sum(targets) / len(targets), rel=1e-3)
    if updates == 1:  # later updates tell that of the policy as it is
        assert told["kl"] == pytest.approx(sum(d) / len(d), rel=1e-3)


def test_a_reference_that_cannot_be_loaded_is_named(against, tmp_path):
    with pytest.raises(ConfigError, match=r"^learn\.reference='.*': cannot be loaded"):
        against(tmp_path)


# --- losses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("learn", "passes"),
    [
        *[({"loss": name, "updates_per_step": 3}, 2) for name in LOSSES if name != "pg"],
        ({"correction": "decoupled", "updates_per_step": 3}, 2),
        ({"loss": "pg", "updates_per_step": 3}, 0),
        ({"loss": "pg", "correction": "dppo", "updates_per_step": 3}, 0),
        ({"correction": "decoupled"}, 0),
    ],
)
def test_all_updates_but_the_first_have_the_log_probs_before_the_step_where_a_clip_needs_them(trainer, learn, passes):
    groups = some_groups(groups=3)
    made = trainer(**learn)
    calls = []
    made.model.module.register_forward_hook(lambda *_: calls.append(1))
    minis = mini_batches(groups, made._split)
    found = made._before(minis)
    assert [olds is not None for olds in found] == [number > 0 and passes > 0 for number in range(len(minis))]
    assert [len(olds[0]) for olds in found if olds] == [mini.counted for mini in minis[1:]][:passes]
    assert len(calls) == passes


def test_a_loss_that_is_no_number_says_what_to_lower(trainer):
    with pytest.raises(LearnerError, match=r"the loss of rank 0 is nan: lower learn\.lr or learn\.grad_clip"):
        trainer().step(some_groups(advantages=(math.nan,)))
