"""Prompts that are solved are left out of later epochs, by whatever schedule and however often the run was cut."""

from __future__ import annotations

import random
from dataclasses import replace

import fake_loops as loops
import pytest
from fake_parts import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from group_of import group_of
from journal import essence

from overlap.config.fields import Config
from overlap.core import Request
from overlap.core.errors import EmptyBatchesError
from overlap.pipeline.learning import Components, StepResult
from overlap.pipeline.loop import Position, overlapped, serial
from overlap.pipeline.prompts import PromptStream, Solved, solves

COUNT = 9
STEPS = 14


def config(**overrides: object) -> Config:
    return loops.config(**{"rollout__groups_per_step": 2, "run__steps": STEPS, "data__drop_solved": 0.75} | overrides)


class Improving(FakeVerifier):
    """Each prompt is solved from a group of its own on; the last two never are."""

    def __init__(self, never: int = 2, seed: int = 0, seconds: object = None) -> None:
        super().__init__(seed=seed, seconds=seconds or (lambda _: 0.0))  # type: ignore[arg-type]
        self._never = never

    def _judged(self, request: Request, rng: random.Random) -> float | None:
        number = int(request.prompt.id[1:])
        if number >= COUNT - self._never:
            return float(request.sample % 2)
        return 1.0 if request.group >= 3 * number and request.sample else float(rng.random() < 0.5)


def components(seed: int = 0, version: int = 0, spread: float = 0.01, **verifier: int) -> Components:
    """The same samples for every ``seed``, which takes its own time over them."""

    def some_s(rng: random.Random) -> float:
        return random.Random(f"{seed}/{rng.random()}").expovariate(1 / spread)

    generator = FakeGenerator(seconds=some_s, slots=8)
    learner = FakeLearner(seconds=lambda rng: 0.02, first_version=version)
    return Components(generator, Improving(seconds=some_s, **verifier), learner)


def run(
    loop, cfg: Config, d: Components, at: Position | None = None, known: dict | None = None
) -> tuple[list[StepResult], list[dict], PromptStream]:
    """Results, what was solved before each and at the end, and the stream."""
    solved, at = list[dict[str, int]](), at or Position()
    prompts = PromptStream.of(cfg, fake_prompts(COUNT), at.groups, known)

    async def on_weights(result: StepResult) -> None:
        solved.append(prompts.known)

    results = loops.run_loop(loop, cfg, d, prompts, at, on_weights=on_weights)
    return results, [*solved[1:], prompts.known], prompts


@pytest.mark.parametrize(
    ("rewards", "bound", "expected"),
    [
        ((1, 1, 1, 1), 1.0, True),
        ((1,) * 9 + (0,), 0.9, True),
        ((1,) * 8 + (0, 0), 0.9, False),
        ((1, 1, None, None), 0.9, True),
        ((1, None, None, None), 0.9, False),
        ((None, None), 0.9, False),
        ((0.9, 0.9, 0.9), 0.9, True),
        ((0.9, 0.3 + 0.3 + 0.3), 0.9, True),
        ((0.9, 0.8999), 0.9, False),
    ],
)
def test_a_group_solves_its_prompt_by_the_mean_of_what_could_be_scored(
    rewards: tuple, bound: float, expected: bool
) -> None:
    assert solves(group_of(*rewards), bound) is expected


def test_an_epoch_leaves_out_what_was_solved_so_many_groups_before_it() -> None:
    told: list[str] = []
    stream = PromptStream(fake_prompts(4), 0, solved=Solved(0.9, 3), tell=told.append)
    first = [next(stream).id for _ in range(4)]
    stream.note([group_of(1, 1, number=0, prompt=first[0]), group_of(1, 0, number=1, prompt=first[1])])
    stream.note([group_of(1, 1, number=2, prompt=first[2])])  # too late for the next epoch, in time for the one after
    second = [next(stream).id for _ in range(3)]
    assert sorted(second) == sorted([*first[1:]])
    stream.note([group_of(1, 0, number=n, prompt=p) for n, p in enumerate(second, 4)])
    assert sorted(next(stream).id for _ in range(2)) == sorted([first[1], first[3]])
    assert told == [
        f"epoch {n} leaves out {out} of 4 prompts, solved at data.drop_solved=0.9 or more"
        for n, out in ((2, 1), (3, 2))
    ]
    assert [stream.at(n).id for n in range(9)] == [*first, *second, stream.at(7).id, stream.at(8).id]


def test_the_prompts_that_stay_keep_their_order() -> None:
    solved = Solved(0.9, 1)
    stream, plain = PromptStream(fake_prompts(8), 3, solved=solved), PromptStream(fake_prompts(8), 3)
    solved.note([group_of(1, 1, number=n, prompt=plain.at(n).id) for n in range(3)])
    out = {plain.at(n).id for n in range(3)}
    solved.note([group_of(1, 0, number=7)])
    left = [plain.at(n).id for n in range(8, 16) if plain.at(n).id not in out]
    assert [stream.at(n).id for n in range(8, 8 + len(left))] == left


@pytest.mark.parametrize("refill", [0, 1, 3])
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_prompts_are_the_same_whatever_took_how_long(staleness: int, refill: int) -> None:
    cfg = config(rollout__max_staleness=staleness, rollout__refill_groups=refill)
    found = [run(serial, cfg, components())]
    found += [run(overlapped, cfg, components(seed, spread=spread)) for seed in range(4) for spread in (0.001, 0.1)]
    batches = [[essence(r.batch) for r in results] for results, _, _ in found]
    assert all(other == batches[0] for other in batches)
    assert len(batches[0]) == STEPS
    assert found[0][1] == found[-1][1]
    assert len(found[0][1][-1]) >= 4


@pytest.mark.promise("prompt-order")
@pytest.mark.parametrize("refill", [0, 1])
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_run_that_was_cut_anywhere_goes_on_with_the_same_prompts(staleness: int, refill: int) -> None:
    cfg = config(rollout__max_staleness=staleness, rollout__refill_groups=refill)
    whole, solved, _ = run(overlapped, cfg, components())
    for cut in range(1, STEPS):
        at = replace(loops.position_after(whole[:cut]), carried=whole[cut - 1].carried)
        again, after, _ = run(overlapped, cfg, components(cut, at.version), at, solved[cut - 1])
        assert [essence(r.batch) for r in again] == [essence(r.batch) for r in whole[cut:]]
        assert after == solved[cut:]


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("loop", [serial, overlapped])
def test_a_run_ends_when_all_prompts_are_solved(loop, staleness: int) -> None:
    cfg = config(rollout__max_staleness=staleness, run__steps=500)
    results, solved, prompts = run(loop, cfg, components(never=0))
    assert prompts.ended
    assert len(results) < 100
    assert len(solved[-1]) == COUNT
    at = loops.position_after(results)
    again, _, stream = run(loop, cfg, components(version=at.version, never=0), at, solved[-1])
    assert (again, stream.ended) == ([], True)


def test_solved_prompts_are_not_what_makes_a_run_hopeless() -> None:
    """They are on their way out; a step of them alone is no sign that the data is too easy."""

    class Easy(FakeVerifier):
        def _judged(self, request: Request, rng: random.Random) -> float | None:
            return 1.0 if request.prompt.id != "p0" else float(request.sample % 2)

    cfg = config(run__steps=12)
    assert len(run(overlapped, cfg, loops.components(verifier=Easy()))[0]) == 12
    with pytest.raises(EmptyBatchesError, match="too hard"):
        run(overlapped, cfg, loops.components(verifier=FakeVerifier(solved=0.0)))
