"""The learner without DeepSpeed: what it refuses, its schedule, its wire, and attention with shared prompts."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import threading
from array import array
from contextlib import nullcontext
from pathlib import Path

import pytest

from overlap.config import Config, LearnConfig, ModelConfig, RolloutConfig
from overlap.core import Batch, Group, Prompt, Request, Scored, Trajectory, VersionSpan
from overlap.errors import ConfigError, LearnerError, RunDirError, StaleBatchError
from overlap.learner.learner import ProcessLearner
from overlap.learner.micro_batch import PromptGroup, Response, SplitConfig, mini_batches
from overlap.learner.saved_state import LearnerState, read_state, write_state

PROMPT = Prompt("p", (1, 2, 3))


def batch(*versions, version=0, reward=1.0):
    samples = tuple(
        Scored(
            Trajectory(Request(0, i, PROMPT), (4, 5), (-1.0, -1.0), "", "stop", (VersionSpan(v, 0, 2),), 0.0, 1.0),
            reward,
        )
        for i, v in enumerate(versions)
    )
    return Batch(version + 1, version, (Group(0, PROMPT, samples, (1.0,) * len(samples)),) if samples else ())


def learner(tmp_path, **rollout):
    return ProcessLearner(Config(rollout=RolloutConfig(**rollout)), tmp_path, tmp_path, total_updates=1)


def test_construction_starts_nothing_and_needs_no_loop(tmp_path):
    made = learner(tmp_path)
    assert made.pids() == ()
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        asyncio.run(made.close())


def test_a_sample_older_than_promised_is_refused_before_anything_is_learned(tmp_path):
    made = learner(tmp_path, max_staleness=1)
    made._version = 3
    with pytest.raises(StaleBatchError, match=r"g0s1 is 2 versions old at step 4, rollout\.max_staleness=1"):
        asyncio.run(made.step(batch(3, 1, 2, version=3)))


def test_a_sample_from_the_future_is_refused(tmp_path):
    with pytest.raises(StaleBatchError, match="-1 versions old"):
        asyncio.run(learner(tmp_path).step(batch(1)))


def test_a_batch_for_another_version_is_refused(tmp_path):
    with pytest.raises(LearnerError, match=r"batch\.version=2, but the learner holds version 0"):
        asyncio.run(learner(tmp_path).step(batch(2, version=2)))


@pytest.mark.parametrize("empty", [batch(), batch(0, 0, reward=None)])
def test_a_batch_without_a_counted_token_is_refused(tmp_path, empty):
    with pytest.raises(LearnerError, match="no token to learn from"):
        asyncio.run(learner(tmp_path).step(empty))


def test_a_call_before_start_says_so(tmp_path):
    with pytest.raises(LearnerError, match="start"):
        asyncio.run(learner(tmp_path).logprobs((1, 2)))


class Saving:
    """Stands in for the ranks: writes what it is told to save, version by version."""

    version = 0

    def saving(self, folder):
        return nullcontext([folder])

    async def call(self, name, timeout_s, each):
        ((folder, kind),) = each
        self.version += 1
        folder.mkdir()
        (folder / kind).write_text(str(self.version))
        return self.version


def saving(tmp_path):
    made = learner(tmp_path)
    made._ranks = Saving()
    return made


def test_a_save_that_is_cancelled_while_it_takes_its_place_leaves_a_whole_policy(tmp_path, monkeypatch):
    made, policy = saving(tmp_path), tmp_path / "policy"
    entered, release = threading.Event(), threading.Event()
    rename = os.rename

    def slow(*args):
        entered.set()
        assert release.wait(20)
        rename(*args)

    async def main():
        await made.save(policy, kind="policy")
        monkeypatch.setattr(os, "rename", slow)
        task = asyncio.create_task(made.save(policy, kind="policy"))
        assert await asyncio.to_thread(entered.wait, 20)
        task.cancel()
        for _ in range(20):
            await asyncio.to_thread(int)  # threads that tidy up too early would do it meanwhile
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (policy / "policy").read_text() == "2"
    assert os.listdir(tmp_path) == ["policy"]


def test_a_policy_that_cannot_take_its_place_leaves_the_former_one(tmp_path, monkeypatch):
    made, policy = saving(tmp_path), tmp_path / "policy"
    replace = os.replace

    def refuses(source, target):
        if ".partial" in str(source):
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    async def main():
        await made.save(policy, kind="policy")
        monkeypatch.setattr(os, "replace", refuses)
        monkeypatch.setattr(Path, "rename", lambda source, target: refuses(source, target))
        with pytest.raises(RunDirError, match="Input/output error"):
            await made.save(policy, kind="policy")

    asyncio.run(main())
    assert (policy / "policy").read_text() == "1"
    assert os.listdir(tmp_path) == ["policy"]


def test_a_state_is_restored_only_by_a_learner_of_its_number_type(tmp_path):
    two = Config(learn=LearnConfig(ranks=2))
    state = LearnerState(version=3, updates=6, ranks=2, zero_stage=2)
    write_state(tmp_path, two, state)
    assert read_state(tmp_path, two) == read_state(tmp_path, Config()) == state
    with pytest.raises(
        ConfigError, match=r"was written with model\.dtype=bfloat16: resume with that, this run has float32"
    ):
        read_state(tmp_path, Config(model=ModelConfig(dtype="float32")))
    with pytest.raises(ConfigError, match="has no learner state that can be read"):
        read_state(tmp_path / "nowhere", two)
    (tmp_path / "learner.json").write_text("{}")
    with pytest.raises(ConfigError, match="has no learner state that can be read"):
        read_state(tmp_path, two)


def test_a_state_is_gone_on_with_by_a_learner_that_has_a_critic_as_it_had(tmp_path):
    with_one = Config(learn=LearnConfig(advantage="gae"))
    state = LearnerState(version=3, updates=2, ranks=1, zero_stage=2, critic_updates=3)
    write_state(tmp_path, with_one, state)
    assert read_state(tmp_path, with_one) == state
    with pytest.raises(ConfigError, match=r"has a critic: resume with learn\.advantage=gae, this run has group"):
        read_state(tmp_path, Config())
    write_state(tmp_path, Config(), LearnerState(3, 2, 1, 2))
    with pytest.raises(ConfigError, match=r"has no critic: resume without learn\.advantage=gae, this run has gae"):
        read_state(tmp_path, with_one)


def test_a_reward_out_of_a_critics_reach_is_refused_before_anything_is_learned(tmp_path):
    made = ProcessLearner(Config(learn=LearnConfig(advantage="gae")), tmp_path, tmp_path, total_updates=1)
    far = batch(0)
    far = Batch(1, 0, (Group(0, PROMPT, far.samples, (2.0,)),))
    with pytest.raises(ConfigError, match=r"a sample's reward is 2, outside .*: use critic\.bounded=false"):
        asyncio.run(made.step(far))


torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from overlap.learner.attention import NAME  # noqa: E402
from overlap.learner.model import checkpoint_layers, choose_attention, load_policy, plain  # noqa: E402
from overlap.learner.optimizer import learning_rate  # noqa: E402
from overlap.learner.tensors import to_tensors  # noqa: E402
from overlap.policy import make_tiny_policy  # noqa: E402

CPU = torch.device("cpu")


def test_the_rate_warms_up_and_then_follows_its_schedule():
    def rates(schedule, total=10):
        learn = LearnConfig(lr=1.0, warmup_steps=2, schedule=schedule)
        return [learning_rate(i, learn, total) for i in range(total)]

    assert rates("constant") == [0.5] + [1.0] * 9
    assert rates("linear") == pytest.approx([0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])
    assert rates("cosine")[2] == 1.0
    assert rates("cosine")[6] == pytest.approx(0.5)
    assert learning_rate(10, LearnConfig(lr=1.0, schedule="linear"), 10) == 0.0
    assert learning_rate(99, LearnConfig(lr=1.0, schedule="cosine"), 10) == 0.0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return make_tiny_policy(tmp_path_factory.mktemp("policy"))


def some_groups(seed=0, groups=3, samples=4):
    rng = random.Random(seed)

    def tokens(low, high):
        return array("i", [rng.randrange(259) for _ in range(rng.randint(low, high))])

    def response():
        mine = tokens(1, 20)
        return Response(mine, array("f", [-5.0] * len(mine)), rng.choice([-1.0, 1.0]))

    return [PromptGroup(tokens(1, 15), tuple(response() for _ in range(samples))) for _ in range(groups)]


def logprobs_and_gradient(model, groups, budget, share, padded=False, ranks=1):
    """Log-probs by (first target tokens ...), and the gradient of their advantage-weighted sum, over all ranks."""
    model.zero_grad()
    found = []
    (mini,) = mini_batches(groups, SplitConfig(1, ranks, budget, 64, share, padded))
    for micro in (micro for rank in mini.ranks for micro in rank if micro.counts):
        t = to_tensors(micro)
        logprobs, _ = model(t)
        (logprobs * t.sampled.advantages).sum().backward()
        found += list(zip(t.targets.tolist(), t.sampled.advantages.tolist(), logprobs.tolist(), strict=True))
    return sorted(found), torch.cat([p.grad.flatten() for p in model.parameters()])


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
    model = load_policy(tiny, dtype=torch.float32, temperature=0.8, device=CPU)
    groups = some_groups()
    model.policy.set_attn_implementation("eager")
    expected, gradient = logprobs_and_gradient(model, groups, 1, False)
    model.policy.set_attn_implementation(attention)
    got, got_gradient = logprobs_and_gradient(model, groups, budget, share, padded, ranks)
    assert torch.allclose(torch.tensor(got), torch.tensor(expected), atol=2e-5)
    assert (got_gradient - gradient).norm() < 1e-5 * gradient.norm()


def test_responses_of_one_token_are_predicted_by_their_prompt(tiny):
    model = load_policy(tiny, dtype=torch.float32, temperature=1.0, device=CPU)
    prompt = array("i", [5, 6, 7])
    ones = tuple(Response(array("i", [token]), array("f", [-1.0]), 1.0) for token in (8, 9))
    (packed,) = mini_batches([PromptGroup(prompt, ones)], SplitConfig(1, 1, 64, 64))[0].ranks[0]
    expected = [model(plain([*prompt, token], CPU))[0][-1].item() for token in (8, 9)]
    assert model(to_tensors(packed))[0].tolist() == pytest.approx(expected, abs=1e-5)


def test_small_attention_in_bfloat16_is_attention():
    from overlap.learner.attention import _attend, _attend_small

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_are_those_of_transformers_at_the_temperature(tiny, dtype):
    model = load_policy(tiny, dtype=dtype, temperature=0.5, device=CPU)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=dtype)
    tokens = list(range(40, 90))
    with torch.no_grad():
        logits = reference(torch.tensor([tokens])).logits[0, :-1].float() / 0.5
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]
        got = model(plain(tokens, CPU))[0]
    assert torch.allclose(got, expected, atol=1e-4 if dtype == torch.float32 else 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_llama_shares_its_prompts(tiny, dtype):
    model = load_policy(tiny, dtype=dtype, temperature=1.0, device=CPU)
    assert choose_attention(model, CPU)
    assert model.policy.config._attn_implementation == NAME


def saved(path, config_class, model_class, **changes):
    sizes = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16,
    }  # fmt: skip
    model_class(config_class(**sizes, **changes)).save_pretrained(path)
    return load_policy(path, dtype=torch.float32, temperature=1.0, device=CPU)


def test_a_sliding_window_keeps_its_own_attention(tmp_path):
    model = saved(tmp_path, transformers.MistralConfig, transformers.MistralForCausalLM, sliding_window=4)
    assert not choose_attention(model, CPU)
    assert model.policy.config._attn_implementation == "sdpa"


def test_an_untied_head_shares_its_prompts_too(tmp_path):
    model = saved(tmp_path, transformers.Qwen2Config, transformers.Qwen2ForCausalLM, tie_word_embeddings=False)
    assert choose_attention(model, CPU)


def test_a_family_that_changes_its_logits_is_refused(tmp_path):
    model = saved(
        tmp_path,
        transformers.Gemma2Config,
        transformers.Gemma2ForCausalLM,
        final_logit_softcapping=0.01,
        query_pre_attn_scalar=16,
    )
    with pytest.raises(ConfigError, match=r"model\.policy=.*Gemma2ForCausalLM changes its logits"):
        choose_attention(model, CPU)


def test_a_checkpoint_that_lacks_a_tensor_is_refused_by_its_name(tiny, tmp_path):
    """transformers would put random numbers in its place."""
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny, tmp_path / "less")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"1 tensors are missing from its files, such as model\.norm\.weight"):
        load_policy(folder, dtype=torch.float32, temperature=1.0, device=CPU)


def test_a_policy_that_is_no_checkpoint_is_a_user_fault(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"model\.policy=.*nowhere"):
        load_policy(tmp_path / "nowhere", dtype=torch.float32, temperature=1.0, device=CPU)
    folder = shutil.copytree(tiny, tmp_path / "new")
    (folder / "config.json").write_text('{"model_type": "unheard-of"}')
    with pytest.raises(ConfigError, match="unheard-of"):
        load_policy(folder, dtype=torch.float32, temperature=1.0, device=CPU)


def test_a_model_of_another_build_is_refused_in_one_line(tiny):
    model = load_policy(tiny, dtype=torch.float32, temperature=1.0, device=CPU)
    model.policy.base_model.forward = lambda **_: object()
    with pytest.raises(ConfigError, match="LlamaForCausalLM cannot be read from hidden states"):
        choose_attention(model, CPU)


def test_layers_that_cannot_be_computed_again_are_refused_only_where_it_is_asked_for(tiny, monkeypatch):
    model = load_policy(tiny, dtype=torch.float32, temperature=1.0, device=CPU)
    assert not checkpoint_layers(model, LearnConfig(checkpointing="auto"))
    assert not model.policy.is_gradient_checkpointing
    monkeypatch.setattr(type(model.policy), "supports_gradient_checkpointing", False)
    assert not checkpoint_layers(model, LearnConfig(checkpointing="auto", micro_batch_tokens=10**9))
    with pytest.raises(
        ConfigError, match=r"learn\.checkpointing='always': LlamaForCausalLM does not .* use auto or never"
    ):
        checkpoint_layers(model, LearnConfig(checkpointing="always"))


def test_dropout_is_off(tmp_path):
    model = saved(tmp_path, transformers.LlamaConfig, transformers.LlamaForCausalLM, attention_dropout=0.5)
    tokens = plain(list(range(30)), CPU)
    assert torch.equal(model(tokens)[0], model(tokens)[0])
