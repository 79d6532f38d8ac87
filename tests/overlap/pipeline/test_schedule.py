"""The schedule, on a virtual clock: near the best that there can be, with samples no older than that needs."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from fake_parts import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from virtual_clock import run_virtual

from overlap.config.load import load_config
from overlap.core.clock import now
from overlap.pipeline.learning import Components, StepResult
from overlap.pipeline.loop import overlapped
from overlap.pipeline.prompts import PromptStream

GENERATE_S, REWARD_S, LEARN_S = 180.0, 140.0, 120.0
GROUPS, SAMPLES, WORKERS, STEPS = 16, 4, 8, 24


def long_tail(rng: random.Random) -> float:
    return min(GENERATE_S, GENERATE_S * 0.22 * math.exp(0.75 * rng.gauss(0.0, 1.0)))


def verify_time(rng: random.Random) -> float:
    return REWARD_S * WORKERS / (GROUPS * SAMPLES) * (0.5 + rng.random())


def measured(staleness: int, learn_s: float = LEARN_S, *, shares: bool = False) -> tuple[float, float]:
    """Seconds from step to step, and mean age, once the pipeline is full. The verifiers are not those of the
    configuration. Where engine and learner share devices, a step's samples fill the engine.
    """
    slots = GROUPS * SAMPLES if shares else 100_000
    cfg = load_config(
        None,
        [
            f"rollout.groups_per_step={GROUPS}",
            f"rollout.samples_per_group={SAMPLES}",
            f"rollout.max_staleness={staleness}",
            f"rollout.max_sequences={slots}",
            f"run.steps={STEPS}",
            "verify.workers=1",
        ],
    )
    components = Components(
        FakeGenerator(seconds=long_tail, slots=slots),
        FakeVerifier(seconds=verify_time, workers=WORKERS),
        FakeLearner(seconds=lambda _: learn_s, shares=shares),
    )
    ends, ages = list[float](), list[float]()

    async def on_step(result: StepResult) -> None:
        ends.append(now())
        ages.append(statistics.mean(result.batch.staleness))

    run_virtual(overlapped(components, cfg, PromptStream(fake_prompts(GROUPS), 0), on_step))
    full = STEPS // 3
    return (ends[-1] - ends[full]) / (STEPS - 1 - full), statistics.mean(ages[full:])


def best(staleness: int) -> float:
    """No schedule is faster: a step's own chain, over the steps that may be on their way; or its busiest part."""
    chain = GENERATE_S + REWARD_S * WORKERS / (GROUPS * SAMPLES) + LEARN_S
    return max(chain / (staleness + 1), REWARD_S, LEARN_S)


@pytest.mark.promise("figures")
@pytest.mark.parametrize("staleness", [0, 1, 2, 4])
def test_the_schedule_is_near_the_best_there_can_be(staleness: int) -> None:
    seconds, _ = measured(staleness)
    assert best(staleness) / seconds >= 0.95


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_on_shared_devices_the_tail_of_a_step_decodes_beside_the_next_ones(staleness: int) -> None:
    """A step's samples have what the learner leaves of as many periods as there are steps on their way."""
    seconds, _ = measured(staleness, shares=True)
    verify_s, decoded_s = REWARD_S * WORKERS / (GROUPS * SAMPLES), GENERATE_S * 0.29
    least = max((GENERATE_S + verify_s) / (staleness + 1), decoded_s) + LEARN_S
    assert least / seconds >= 0.95
