"""Weights that land while the real engine has requests: what they were sampled from, in each ``rollout.in_flight``.

The engine decodes three at once and has memory for one context, so requests wait in it, and are put back.
"""

import asyncio
import itertools

import pytest
from engine_bench import Bench
from wide import wide

from overlap.config.fields import Config, ModelConfig
from overlap.config.learn import LearnConfig
from overlap.config.rollout import RolloutConfig
from overlap.core import Prompt, Request

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

BOUND = 1e-4
PROMPT = tuple(range(40, 90))  # a whole block of it is shared
RUNNING, TRIES = 3, 60
ROOM = 78  # so long are three responses when the memory is full: later ones may have been put back and read anew
GROUPS = itertools.count()
OF_ADAPTERS = " adapters"
in_flight = pytest.mark.parametrize("bench", ["recompute", wide("keep"), wide("keep" + OF_ADAPTERS)], indirect=True)
kept = pytest.mark.parametrize("bench", [wide("keep"), wide("keep" + OF_ADAPTERS)], indirect=True)
drained = pytest.mark.parametrize("bench", [wide("drain"), wide("drain" + OF_ADAPTERS)], indirect=True)


@pytest.fixture(scope="module", params=["recompute", wide("keep"), wide("drain")])
def bench(request, tiny_policy, hosts_found, tmp_path_factory):
    landing = request.param.removesuffix(OF_ADAPTERS)
    cfg = Config(
        model=ModelConfig(dtype="float32", prompt_tokens=64, response_tokens=200),
        rollout=RolloutConfig(temperature=0.7, max_sequences=RUNNING, in_flight=landing),
        learn=LearnConfig(lora_rank=4) if landing != request.param else LearnConfig(),
    )
    bench = Bench(cfg, tiny_policy, tmp_path_factory.mktemp("s"), "tight_host")
    bench.landing = landing
    bench.run(bench.generator.load(bench.update()))
    yield bench
    bench.close()


def send(bench, count, group=None):
    group = next(GROUPS) if group is None else group
    return [asyncio.create_task(bench.generator.generate(Request(group, i, Prompt("p", PROMPT)))) for i in range(count)]


async def sampled(bench, condition):
    """Tokens so far by request, once they are as wanted."""
    while not condition(tokens := await bench.generator._peer.call("sampled")):
        pass
    return tokens


async def frozen(bench):
    """Requests that run, some with tokens; then the engine stands still, and gets as many that wait in it."""
    running = send(bench, RUNNING)
    await sampled(bench, lambda tokens: any(n >= 4 for n in tokens.values()) or all(task.done() for task in running))
    await bench.generator._ask("pause", "pause")
    group = next(GROUPS)
    waiting = send(bench, RUNNING, group)
    await sampled(bench, lambda tokens: {f"g{group}s{i}" for i in range(RUNNING)} <= tokens.keys())
    return running, waiting


def crossing(bench, room=1000):
    """Responses that were in flight during a load, with fewer tokens than ``room``, and those that waited, with the
    weights before and after it.
    """
    for _ in range(TRIES):  # all that run may have ended before the load
        before = bench.weights()
        bench.learn(0.02)
        update, after = bench.update(), bench.weights()

        async def main(update=update):
            running, waiting = await frozen(bench)
            await bench.generator.load(update)
            return await asyncio.gather(*running), await asyncio.gather(*waiting)

        running, waiting = bench.run(main())
        if crossed := [t for t in running if len(t.spans) == 2 and t.spans[1].start < room]:
            return crossed, waiting, before, after
    raise AssertionError("no response was in flight")


def gaps_at(bench, weights, trajectory, tokens):
    bench.put(weights)
    return max(bench.gaps(trajectory)[tokens])


@pytest.mark.promise("landing")
@in_flight
def test_spans_say_to_the_token_when_weights_landed(bench):
    crossed, waiting, *_ = crossing(bench)
    for t in crossed:
        first, second = t.spans
        assert (first.version, second.version) == (bench.version - 1, bench.version)
        assert (first.start, first.end, second.end) == (0, second.start, len(t.token_ids))
    assert {s.version for t in waiting for s in t.spans} == {bench.version}


@pytest.mark.promise("landing")
@in_flight
def test_what_was_in_flight_goes_on_as_if_the_new_weights_had_read_all_of_it_unless_kept(bench):
    crossed, _, before, after = crossing(bench)
    old = max(gaps_at(bench, before, t, slice(None, t.spans[1].start)) for t in crossed)
    new = max(gaps_at(bench, after, t, slice(t.spans[1].start, None)) for t in crossed)
    print(f"{bench.landing}: tokens before the load {old:.1e} nats off, after it {new:.1e}")
    assert old < BOUND
    assert (new > 100 * BOUND) if bench.landing == "keep" else (new < BOUND)


@pytest.mark.promise("landing")
@in_flight
def test_what_waits_in_the_engine_reads_nothing_of_the_old_weights(bench):
    _, waiting, _, after = crossing(bench)
    bench.put(after)
    assert max(map(bench.gap, waiting)) < BOUND


@kept
def test_a_kept_response_goes_on_with_what_the_old_weights_made_of_its_tokens(bench):
    crossed, _, before, after = crossing(bench, ROOM)
    for t in crossed:
        start = t.spans[1].start
        cut = len(PROMPT) + start - 1  # the first token that the new weights read
        tokens = [*PROMPT, *t.token_ids]
        bench.put(before)
        _, past = bench.logprobs(tokens[:cut])
        bench.put(after)
        new, _ = bench.logprobs(tokens[cut:], past)
        gaps = [abs(a - b) for a, b in zip(t.logprobs[start:], new, strict=True)]
        assert max(gaps[: ROOM - start]) < BOUND


@drained
def test_draining_lets_all_that_the_engine_has_end_under_the_weights_it_began_with(bench):
    before = bench.weights()
    bench.learn(0.02)
    update, after = bench.update(), bench.weights()

    async def main():
        inside = send(bench, 2 * RUNNING)
        await sampled(bench, lambda tokens: any(tokens.values()) or all(task.done() for task in inside))
        load = asyncio.create_task(bench.generator.load(update))
        await asyncio.sleep(0)
        late = send(bench, RUNNING)
        inside = await asyncio.gather(*inside)
        await load
        return inside, await asyncio.gather(*late)

    inside, late = bench.run(main())
    for weights, trajectories, version in ((before, inside, bench.version - 1), (after, late, bench.version)):
        bench.put(weights)
        assert {s.version for t in trajectories for s in t.spans} == {version}
        assert max(map(bench.gap, trajectories)) < BOUND


def test_what_is_put_back_for_want_of_memory_has_its_log_probs_and_one_span(bench):
    async def main():
        return await asyncio.gather(*send(bench, 12))

    trajectories = bench.run(main())
    assert sum(len(t.token_ids) for t in sorted(trajectories, key=lambda t: -len(t.token_ids))[:RUNNING]) > 400
    assert max(map(bench.gap, trajectories)) < BOUND
    assert {(s.version, s.start, s.end - len(t.token_ids)) for t in trajectories for s in t.spans} == {
        (bench.version, 0, 0)
    }


@pytest.mark.promise("prompt-order")
def test_evaluations_and_then_the_oldest_group_are_served_first(bench):
    groups = [904, 901, -1, 903, 900, -2, 902]

    async def main():
        await bench.generator._ask("pause", "pause")
        tasks = [task for group in groups for task in send(bench, 1, group)]
        await sampled(bench, lambda tokens: len(tokens) == len(groups))
        await bench.generator._ask("resume", "resume")
        tokens = await sampled(bench, lambda tokens: any(tokens.values()) or len(tokens) < len(groups))
        begun = {f"g{group}s0" for group in groups} - {id for id, n in tokens.items() if not n}
        await asyncio.gather(*tasks)
        return begun

    begun = bench.run(main())
    assert begun == {f"g{group}s0" for group in sorted(groups)[: len(begun)]}
