"""A real engine with options of its own: n-gram speculation among them."""

import asyncio

import pytest
from engine_bench import Bench

from overlap.config import Config, ModelConfig, RolloutConfig
from overlap.core import Prompt, Request
from overlap.pipeline.parity import logprob_gaps

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TEMPERATURE = 0.7
PROMPT = tuple(range(40, 60)) * 2
ENGINE = {
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3},
    "block_size": 64,
    "max_num_batched_tokens": 256,
    "enable_chunked_prefill": True,
}
CFG = Config(
    model=ModelConfig(dtype="float32", prompt_tokens=64, response_tokens=200),
    rollout=RolloutConfig(temperature=TEMPERATURE, max_sequences=8, engine=ENGINE),
)


@pytest.fixture(scope="module")
def bench(tiny_policy, hosts_found, tmp_path_factory):
    bench = Bench(CFG, tiny_policy, tmp_path_factory.mktemp("s"))
    yield bench
    bench.close()


def request(sample=0):
    return Request(0, sample, Prompt("p", PROMPT))


def test_parity(bench):
    async def main():
        await bench.generator.load(bench.update())
        samples = [bench.generator.generate(request(i)) for i in range(16)]
        return await asyncio.gather(*samples), await bench.generator.logprobs(PROMPT)

    trajectories, probe = bench.run(main())
    print("GAP", max(bench.gap(t) for t in trajectories), [len(t.token_ids) for t in trajectories])
    print(max(logprob_gaps(probe, bench.logprobs(PROMPT)[0])))
    import torch

    for t in trajectories:
        print("--", t.request.sample, len(t.token_ids), t.finish, [s for s in t.spans])
        g = bench.gaps(t)
        prompt = t.request.prompt.token_ids
        with torch.no_grad():
            logits = bench.model(torch.tensor([[*prompt, *t.token_ids]])).logits[0, len(prompt) - 1 : -1]
        one = logits.log_softmax(-1)[range(len(t.token_ids)), list(t.token_ids)].tolist()
        ours = (logits / TEMPERATURE).log_softmax(-1)[range(len(t.token_ids)), list(t.token_ids)].tolist()
        ls = (logits / TEMPERATURE).log_softmax(-1)
        for i, (gap, a, lp) in enumerate(zip(g, one, t.logprobs)):
            if gap > 1e-4:
                near = [
                    (j, int((ls[j] - lp).abs().argmin()), float((ls[j] - lp).abs().min()))
                    for j in range(max(0, i - 4), min(len(ls), i + 5))
                ]
                print(i, t.token_ids[i], gap, "engine", lp, "t07", ours[i], "t1", a, [n for n in near if n[2] < 2e-6])
