"""A real engine with several options of vLLM: n-gram speculation draws as the policy does, with its log-probs."""

import asyncio
import math
from itertools import pairwise

import pytest
from engine_bench import Bench

from overlap.config.load import load_config
from overlap.core import Prompt, Request
from overlap.generate.options import check_options
from overlap.pipeline.parity import logprob_gaps

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

BOUND = 1e-5
"""Nats, at which a response is compared; those of one load differ by 2.4e-6 at most, here as without speculation."""
PROMPT = tuple(range(40, 60)) * 2
CFG = load_config(
    None,
    [
        "model.dtype=float32",
        "model.prompt_tokens=64",
        "model.response_tokens=200",
        "rollout.temperature=0.7",
        "rollout.max_sequences=8",
        "rollout.engine.speculative_config={method: ngram, num_speculative_tokens: 3, prompt_lookup_min: 1, "
        "prompt_lookup_max: 3}",
        "rollout.engine.block_size=64",
        "rollout.engine.max_num_batched_tokens=256",
        "rollout.engine.enable_chunked_prefill=true",
        "rollout.engine.performance_mode=throughput",
    ],
)


@pytest.fixture(scope="module")
def bench(tiny_policy, hosts_found, tmp_path_factory):
    check_options(CFG, "cpu")
    bench = Bench(CFG, tiny_policy, tmp_path_factory.mktemp("s"))
    yield bench
    bench.close()


def sample(bench, count):
    async def main():
        await bench.generator.load(bench.update())
        requests = (Request(0, number, Prompt("p", PROMPT)) for number in range(count))
        return await asyncio.gather(*map(bench.generator.generate, requests))

    return bench.run(main())


def excess(bench, trajectories):
    """How much more often than the policy says a response repeats what followed the same token before, in standard
    deviations: what an n-gram drafts. 0 on average where drafts change nothing.
    """
    more = variance = 0.0
    for trajectory in trajectories:
        tokens = [*PROMPT, *trajectory.token_ids]
        with bench.torch.no_grad():
            logits = bench.model(bench.torch.tensor([tokens])).logits[0]
        law, followed = (logits / CFG.rollout.temperature).softmax(-1), {}
        for place, (token, following) in enumerate(pairwise(tokens)):
            if place >= len(PROMPT) - 1 and (drafted := followed.get(token)) is not None:
                share = law[place, drafted].item()
                more, variance = more + (following == drafted) - share, variance + share * (1 - share)
            followed[token] = following
    return more / math.sqrt(variance)


@pytest.mark.promise("logprobs")
def test_accepted_and_other_tokens_have_the_log_probs_of_the_policy_after_each_load(bench):
    for _ in range(2):
        trajectories = sample(bench, 24)
        assert max(bench.gap(one) for one in trajectories) < BOUND
        assert {span.version for one in trajectories for span in one.spans} == {bench.version}
        probe = bench.run(bench.generator.logprobs(PROMPT))
        assert max(logprob_gaps(probe, bench.logprobs(PROMPT)[0])) < BOUND
        bench.learn()


@pytest.mark.wide
def test_drafts_are_accepted_as_often_as_the_policy_says(bench):
    assert abs(excess(bench, sample(bench, 64))) < 4


@pytest.mark.wide
def test_responses_go_on_under_new_weights_with_the_log_probs_of_each_version(bench):
    async def main():
        before = bench.weights()
        tasks = [asyncio.create_task(bench.generator.generate(Request(0, i, Prompt("p", PROMPT)))) for i in range(24)]
        while not any(count > 20 for count in (await bench.generator._peer.call("sampled")).values()):
            pass
        bench.learn()
        await bench.generator.load(bench.update())
        return before, await asyncio.gather(*tasks)

    before, trajectories = bench.run(main())
    after, spans = bench.weights(), [one for one in trajectories if len(one.spans) > 1]
    assert spans
    for weights, number in ((before, 0), (after, 1)):
        bench.put(weights)
        for one in spans:
            assert max(bench.gaps(one)[one.spans[number].start : one.spans[number].end]) < BOUND


@pytest.mark.promise("engine-door")
def test_what_vllm_refuses_is_bad_input_that_names_the_options(tiny_policy, hosts_found, tmp_path):
    from overlap.core.errors import ConfigError

    cfg = CFG.replace({"rollout.engine": {"max_num_batched_tokens": 4, "enable_chunked_prefill": False}})
    check_options(cfg, "cpu")
    bench = Bench(cfg, tiny_policy, tmp_path)
    try:
        with pytest.raises(ConfigError, match=r"rollout\.engine=.*'max_num_batched_tokens': 4.*vLLM refuses it"):
            bench.run(bench.generator.start())
    finally:
        bench.close()


@pytest.mark.wide
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("bfloat16", {"quantization": "fp8_per_channel", "kv_cache_dtype": "fp8"}),
        ("float32", {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 3}}),
    ],
)
def test_quantized_weights_and_those_beside_a_draft_model_are_loaded_anew(
    dtype, options, tiny_policy, hosts_found, tmp_path
):
    if "speculative_config" in options:
        options = {"speculative_config": options["speculative_config"] | {"model": str(tiny_policy)}}
    cfg = CFG.replace({"model.dtype": dtype, "rollout.engine": {**options, "enable_prefix_caching": False}})
    check_options(cfg, "cpu")
    bench = Bench(cfg, tiny_policy, tmp_path)
    try:
        bench.run(bench.generator.load(bench.update()))
        old, _ = bench.logprobs(PROMPT)
        bench.learn()
        trajectories = sample(bench, 8)
        probe, (new, _) = bench.run(bench.generator.logprobs(PROMPT)), bench.logprobs(PROMPT)
    finally:
        bench.close()
    assert sum(logprob_gaps(probe, new)) < 0.3 * sum(logprob_gaps(probe, old))
    if dtype == "float32":
        assert max(bench.gap(one) for one in trajectories) < BOUND
