"""The real engine with a tiny random policy: gate, log-probs, weight sync, death, and what is left behind."""

import asyncio
import os
import signal
from dataclasses import replace

import pytest
from engine_bench import Bench, core_of
from hostile import check_episodes, hostile_episodes

from overlap.config.fields import Config, ModelConfig
from overlap.config.rollout import RolloutConfig
from overlap.core import Prompt, Request, WeightUpdate
from overlap.core.errors import EngineError
from overlap.generate.client import EngineClient
from overlap.pipeline.parity import logprob_gaps
from overlap.process.process_tree import alive, identify
from overlap.process.run_environment import run_name, shared_memory_names
from overlap.weights.full import full_tensors

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TEMPERATURE = 0.7
BOUND = 1e-4
PROMPT = tuple(range(40, 90))
CFG = Config(
    model=ModelConfig(dtype="float32", prompt_tokens=64, response_tokens=200),
    rollout=RolloutConfig(temperature=TEMPERATURE, max_sequences=8),
)


def largest_gap(ours, theirs):
    """Over all tokens, nats."""
    return max(logprob_gaps(ours, theirs))


@pytest.fixture(scope="module")
def bench(tiny_policy, hosts_found, tmp_path_factory):
    bench = Bench(CFG, tiny_policy, tmp_path_factory.mktemp("s"))
    yield bench
    bench.close()


MANY = 24
"""Requests: not all of them can have ended when the engine falls asleep."""


def request(sample=0):
    return Request(0, sample, Prompt("p", PROMPT))


@pytest.mark.promise("gate")
def test_dummy_weights_never_serve_a_token(bench):
    async def main():
        early = asyncio.create_task(bench.generator.generate(request()))
        await bench.generator.start()
        assert not early.done()
        await bench.generator.load(bench.update())
        return await early

    trajectory = bench.run(main())
    assert [span.version for span in trajectory.spans] == [0]
    assert bench.gap(trajectory) < BOUND


def test_a_share_of_the_probability_that_only_the_likeliest_token_has_gives_the_likeliest_answer(bench):
    async def main():
        await bench.generator.load(bench.update())
        asked = [Request(-1, 0, Prompt("p", PROMPT), 0.0), Request(-1, 1, Prompt("p", PROMPT), 2.0, 1e-6)]
        return await asyncio.gather(*map(bench.generator.generate, asked))

    greedy, narrow = bench.run(main())
    assert greedy.token_ids == narrow.token_ids


@pytest.mark.promise("logprobs")
def test_logprobs_are_those_of_the_policy_at_the_sampling_temperature(bench):
    async def main():
        samples = [bench.generator.generate(request(i)) for i in range(8)]
        return await asyncio.gather(*samples), await bench.generator.logprobs(PROMPT)

    trajectories, probe = bench.run(main())
    assert len({t.token_ids for t in trajectories}) > 1
    assert max(bench.gap(t) for t in trajectories) < BOUND
    assert largest_gap(probe, bench.logprobs(PROMPT)[0]) < BOUND
    for t in trajectories:
        assert t.finish == ("stop" if t.token_ids[-1] == 258 else "length")
        assert [(s.start, s.end) for s in t.spans] == [(0, len(t.token_ids))]


def test_greedy_answers_of_an_evaluation_leave_the_samples_beside_them_alone(bench):
    async def main():
        greedy = (bench.generator.generate(Request(-1, i, Prompt("p", PROMPT), 0.0)) for i in range(2))
        samples = (bench.generator.generate(request(i)) for i in range(2))
        return await asyncio.gather(*greedy, *samples)

    first, second, *samples = bench.run(main())
    assert first.token_ids == second.token_ids
    assert samples[0].token_ids != samples[1].token_ids
    assert max(bench.gap(t) for t in samples) < BOUND
    with bench.torch.no_grad():
        logits = bench.model(bench.torch.tensor([[*PROMPT, *first.token_ids]])).logits[0, len(PROMPT) - 1 : -1]
    chosen = logits[range(len(first.token_ids)), list(first.token_ids)]
    assert (logits.max(-1).values - chosen).max().item() < 1e-3


@pytest.mark.promise("parity")
def test_after_a_sync_sampling_and_probe_follow_the_new_weights(bench):
    async def both():
        return await bench.generator.generate(request()), await bench.generator.logprobs(PROMPT)

    for version in (1, 2):
        old, _ = bench.logprobs(PROMPT)
        bench.learn()
        bench.run(bench.generator.load(bench.update()))
        trajectory, probe = bench.run(both())
        assert {s.version for s in trajectory.spans} == {bench.version}, version
        assert bench.gap(trajectory) < BOUND
        assert largest_gap(probe, bench.logprobs(PROMPT)[0]) < BOUND
        assert largest_gap(probe, old) > 0.1


@pytest.mark.promise("gate")
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda info: info | {"path": "/proc/self/fd/9999"}, "No such file"),
        (lambda info: info | {"size": 1 << 40}, "bytes, not"),
        (lambda info: info | {"tensors": [*info["tensors"], ["model.extra", "float32", [4], 0]]}, "extra"),
        (lambda info: info | {"tensors": info["tensors"][2:]}, "were not sent"),
    ],
)
def test_a_failed_load_keeps_the_gate_shut_and_the_next_one_repairs_everything(bench, spoil, message):
    async def main():
        bench.learn()
        update = bench.update()
        with pytest.raises(EngineError, match=message):
            await bench.generator.load(WeightUpdate(update.version, "shm", spoil(dict(update.info))))
        late = asyncio.create_task(bench.generator.generate(request()))
        await asyncio.wait([late], timeout=0.2)
        assert not late.done()
        await bench.generator.load(update)
        return await late, await bench.generator.logprobs(PROMPT)

    trajectory, probe = bench.run(main())
    assert bench.gap(trajectory) < BOUND
    assert largest_gap(probe, bench.logprobs(PROMPT)[0]) < BOUND


def test_an_engine_that_sleeps_and_wakes_in_parts_loses_no_request_and_serves_the_new_weights(bench, monkeypatch):
    """vLLM gives no memory back on a CPU; what it does with its requests and its caches is the same."""

    async def main():
        generator = bench.generator
        await generator.load(bench.update())
        monkeypatch.setattr(generator, "_spec", replace(generator._spec, sleeps=True))
        early = [asyncio.create_task(generator.generate(request(sample))) for sample in range(MANY)]
        while not await generator._peer.call("unfinished"):
            pass
        try:
            await generator.sleep()
            bench.learn()
            await generator.wake("weights")
            await generator.load(bench.update())
            late = asyncio.create_task(generator.generate(request(MANY)))
            await asyncio.wait([late], timeout=0.2)
            assert not all(task.done() for task in early)
            assert not late.done()
        finally:  # else the tests that follow find it asleep
            await generator.wake("cache")
        return await asyncio.gather(*early), await late, await generator.logprobs(PROMPT)

    early, late, probe = bench.run(main())
    assert {trajectory.finish for trajectory in early} <= {"stop", "length"}
    assert any(trajectory.spans[-1].version == bench.version for trajectory in early)
    assert bench.gap(late) < BOUND
    assert largest_gap(probe, bench.logprobs(PROMPT)[0]) < BOUND


@pytest.mark.promise("stage-faults")
def test_cancelling_takes_the_request_out_of_the_engine(bench):
    async def main():
        task = asyncio.create_task(bench.generator.generate(request()))
        await bench.generator.logprobs(PROMPT[:4])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await bench.generator.logprobs(PROMPT[:4])
        return await bench.generator._peer.call("unfinished")

    assert bench.run(main()) == 0


@pytest.mark.promise("exact-tokens")
def test_whatever_a_harness_does_the_learner_is_given_what_the_engine_saw(bench, tiny_policy):
    """40 episodes; ``test_episodes`` has 1,000."""
    bench.run(bench.generator.load(bench.update()))
    work = hostile_episodes(bench.generator, tiny_policy, CFG.context_tokens, 0, 40)
    check_episodes(bench, bench.runner.run(work))


@pytest.mark.wide
def test_two_engines_share_a_scratch_each_closes_alone_and_a_killed_one_is_reported(tiny_policy, tmp_path, monkeypatch):
    fds, before = len(os.listdir("/proc/self/fd")), dict(os.environ)

    async def main():
        engines = []
        for core in sorted(os.sched_getaffinity(0))[:2]:  # left alone, both would take the same core
            monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", str(core))
            engines.append(EngineClient(CFG, tiny_policy, tmp_path, standalone=True))
            await engines[-1].start()
        monkeypatch.undo()
        one, other = engines[0], engines[-1]
        trees = [[identify(pid) for pid in engine.pids()] for engine in engines]
        await one.generate(request())
        await one.close()
        assert not any(map(alive, trees[0]))
        await other.logprobs(PROMPT[:4])
        core = core_of(other.pids())
        os.kill(core, signal.SIGSTOP)  # no request ends before the kill
        waits = [asyncio.create_task(other.generate(request(i))) for i in range(4)]
        waits.append(asyncio.create_task(other.wait_dead()))
        await asyncio.sleep(0)
        os.kill(core, signal.SIGKILL)
        async with asyncio.timeout(100):
            ends = await asyncio.gather(*waits, return_exceptions=True)
        await other.close()
        return trees, ends

    trees, ends = asyncio.run(main())
    assert all(isinstance(end, EngineError) and "signal 9" in str(end) for end in ends), ends
    assert all(len(tree) >= 2 for tree in trees)
    assert not any(alive(process) for tree in trees for process in tree)
    assert shared_memory_names(run_name(tmp_path)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["engine.log"]
    assert dict(os.environ) == before
    assert len(os.listdir("/proc/self/fd")) <= fds + 2


def test_what_the_cuda_senders_say_is_what_vllms_engines_understand(bench):
    """The transfer itself needs GPUs; its messages do not."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferInitInfo, NCCLWeightTransferUpdateInfo

    from overlap.weights.nccl import NcclSender, TensorSource

    tensors = full_tensors(bench.model, 0)
    info = NcclSender(0, 2, "127.0.0.1").prepare(tensors)
    assert NCCLWeightTransferInitInfo(**info["init"]).packed
    assert NCCLWeightTransferUpdateInfo(**info["update"]).names == [name for name, _ in tensors]
    assert NcclSender(1, 2, "127.0.0.1").prepare(tensors) == {}
    source = TensorSource(tensors)
    assert [(m.name, m.dtype, m.shape) for m in source.metadata()] == [
        (name, tensor.dtype, tuple(tensor.shape)) for name, tensor in source
    ]
