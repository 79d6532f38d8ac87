"""pass@k with intervals, and the difficulty filter, on seeded doubles."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from fake_parts import FakeGenerator, FakeVerifier, fake_prompts

from overlap.core import Request, Scored, Trajectory, WeightUpdate
from overlap.core.errors import ConfigError, EngineError, StageError
from overlap.evaluation.evaluate import PassRate, ProblemTally, measure_pass_rate, paired_change, pass_at_k
from overlap.evaluation.filter import FilterReport, SplitBounds, filter_problems, split_tallies
from overlap.evaluation.history import row as evaluation_row
from overlap.record.json_lines import read_json_lines
from overlap.record.out_file import OutFile


@pytest.mark.promise("evaluation")
def test_pass_at_k_is_the_share_of_k_subsets_that_hold_a_pass() -> None:
    for n in range(1, 8):
        for passes, k in itertools.product(range(n + 1), range(1, n + 1)):
            subsets = list(itertools.combinations([True] * passes + [False] * (n - passes), k))
            assert pass_at_k(n, passes, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert 0.999 < pass_at_k(20000, 9000, 1000) <= 1.0  # no overflow


def rate(*tallies: tuple[str, int, int], k: int = 1) -> PassRate:
    return PassRate(tuple(ProblemTally(*tally) for tally in tallies), k)


def test_a_rate_is_the_mean_over_problems_and_pass_at_k_that_of_the_unbiased_estimates() -> None:
    found = rate(("a", 0, 4), ("b", 1, 4), ("c", 4, 4), k=2)
    assert found.at(1).value == pytest.approx((0 + 0.25 + 1) / 3)
    assert found.at(2).value == pytest.approx((0 + 0.5 + 1) / 3)
    assert found.at(2).low < found.at(2).value < found.at(2).high
    assert found.figures()["pass_at_k"]["k"] == 2
    assert "pass_at_k" not in rate(("a", 0, 4)).figures()
    assert str(found).startswith("pass@1 0.417 (95% CI ")
    assert "pass@2 0.500" in str(found)


@pytest.mark.promise("evaluation")
def test_a_sample_that_could_not_be_judged_neither_passed_nor_failed_and_is_told() -> None:
    found = PassRate(
        (ProblemTally("a", 1, 2, failed=2), ProblemTally("b", 0, 0, failed=4), ProblemTally("c", 0, 4)), k=4
    )
    assert (found.at(1).value, found.at(1).problems) == (0.25, 2)
    assert (found.at(4).value, found.at(4).problems) == (0.0, 1)  # the others have fewer than 4 samples
    assert (found.samples, found.failed, found.figures()["failed"]) == (6, 6, 6)
    assert str(found).endswith("6 samples of 2 problems, 6 could not be judged")


def test_a_change_is_taken_problem_by_problem() -> None:
    before = rate(("a", 0, 4), ("b", 2, 4), ("gone", 4, 4), ("unjudged", 0, 0))
    after = rate(("b", 3, 4), ("a", 1, 4), ("new", 0, 4), ("unjudged", 1, 4))
    change = paired_change(before, after)
    assert (change.value, change.problems) == (0.25, 2)
    assert -1 <= change.low < 0.25 < change.high <= 1


def test_of_rewards_that_are_no_passes_the_mean_is_told_and_no_pass_rate() -> None:
    before = PassRate((ProblemTally("a", 1, 2, rewards=1.5), ProblemTally("b", 0, 2, rewards=-0.5)), 2)
    after = PassRate((ProblemTally("a", 2, 2), ProblemTally("b", 0, 2, rewards=0.5)), 2)
    assert (before.measure, before.estimate.value) == ("mean reward", pytest.approx(0.25))
    assert before.estimate.low == pytest.approx(0.25 - 1.96 * 0.5, abs=1e-3)
    assert str(before).startswith("mean reward 0.250 (95% CI ")
    figures = before.figures()
    assert (figures["measure"], figures["value"], "pass_at_k" in figures) == ("mean reward", pytest.approx(0.25), False)
    assert evaluation_row(figures).keys() >= {"eval/reward_mean", "eval/reward_mean_low", "eval/reward_mean_high"}
    assert not [name for name in evaluation_row(figures) if "pass_at" in name]
    assert paired_change(before, after).value == pytest.approx((0.25 + 0.5) / 2)
    assert PassRate.from_dict(json.loads(json.dumps(asdict(before)))) == before


def measured(work: Callable[[FakeGenerator], object], **fakes: float) -> object:
    async def run() -> object:
        generator = FakeGenerator(**fakes)  # type: ignore[arg-type]
        await generator.load(WeightUpdate(0, "fake", {}))
        async with asyncio.timeout(30):
            return await work(generator)  # type: ignore[misc]

    return asyncio.run(run())


def test_every_sample_is_counted_once() -> None:
    seen: list[tuple[int, int]] = []
    asked: list[Request] = []

    class Noting(FakeVerifier):
        async def score(self, trajectory: Trajectory) -> Scored:
            asked.append(trajectory.request)
            return await super().score(trajectory)

    options = {"temperature": 0.6, "progress": lambda *n: seen.append(n)}
    verifier = Noting(solved=0.3, failed=0.1)
    found = measured(lambda g: measure_pass_rate(g, verifier, fake_prompts(20), 8, **options), truncated=0.2)
    assert isinstance(found, PassRate)
    assert (found.k, found.at(1).problems, found.samples + found.failed) == (8, 20, 160)
    assert 0 < found.failed < 160
    assert found.at(1).value < found.at(4).value
    assert seen == [(i + 1, 160) for i in range(160)]
    assert found.figures()["tokens_mean"] > 0
    assert 0 < found.figures()["truncated_share"] < 1
    assert {request.temperature for request in asked} == {0.6} == {found.temperature}
    assert {request.group for request in asked} == {-1 - g for g in range(20)}  # of no training sample


@pytest.mark.promise("deadlines")
def test_an_evaluation_in_which_nothing_ends_is_given_up_and_an_error_says_on_which_sample() -> None:
    class Dying(FakeGenerator):
        async def generate(self, request: Request) -> Trajectory:
            raise EngineError("gone")

    for generator, told in (
        (FakeGenerator(), r"nothing for 0\.05 s, 6 pending"),  # no version is loaded: they wait for ever
        (Dying(), "generation failed for sample g-1s0: EngineError: gone"),
    ):
        with pytest.raises(StageError, match=told):
            asyncio.run(measure_pass_rate(generator, FakeVerifier(), fake_prompts(3), 2, stall_s=0.05))


def tallies(*passes: int, samples: int = 10) -> list[ProblemTally]:
    return [ProblemTally(f"p{i}", c, samples) for i, c in enumerate(passes)]


@pytest.mark.parametrize(
    "bounds", [{"low": 0.9, "high": 0.1}, {"low": -0.1}, {"high": 1.5}, {"train": -1}, {"heldout": -1}]
)
def test_impossible_bounds_are_refused_by_name(bounds: dict[str, float]) -> None:
    name, value = next(iter(bounds.items()))
    with pytest.raises(ConfigError, match=f"^{name}={value}: use 0 "):
        SplitBounds(**bounds)  # type: ignore[arg-type]


@pytest.mark.promise("filter")
def test_only_a_mixed_outcome_within_the_bounds_is_kept() -> None:
    found = split_tallies([*tallies(0, 1, 5, 9, 10), ProblemTally("p", 0, 0, failed=4)], SplitBounds(low=0.2, high=0.8))
    assert found == ("dropped", "dropped", "train", "dropped", "dropped", "dropped")
    assert split_tallies(tallies(0, 10), SplitBounds(low=0.0, high=1.0)) == ("dropped", "dropped")


def test_heldout_problems_and_a_smaller_training_set_are_spread_over_the_pass_rates() -> None:
    made = tallies(*(i % 9 + 1 for i in range(90)))
    splits = split_tallies(made, SplitBounds(low=0.05, high=0.95, heldout=18, train=9))
    by_split = {name: sorted(t.passes for t, s in zip(made, splits, strict=True) if s == name) for name in set(splits)}
    assert by_split["heldout"] == sorted([*range(1, 10)] * 2)
    assert len(by_split["train"]) == 9
    assert sum(by_split["train"]) / 9 == pytest.approx(5, abs=0.5)
    assert splits == split_tallies(made, SplitBounds(low=0.05, high=0.95, heldout=18, train=9))


class Unused(FakeGenerator):
    async def generate(self, request: Request) -> Trajectory:
        raise AssertionError("nothing may be measured before the input is known to be good")


def test_more_held_out_than_there_are_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    out, bounds = OutFile(tmp_path / "x"), SplitBounds(heldout=2)
    work = filter_problems(Unused(), FakeVerifier(), fake_prompts(2), source="s/t", bounds=bounds, out=out)
    with pytest.raises(ConfigError, match="heldout=2: there are only"):
        asyncio.run(work)
    assert list(tmp_path.iterdir()) == []


def filtered(out: Path, source: str, heldout: int) -> FilterReport:
    verifier, options = FakeVerifier(solved=0.4), {"samples": 4, "bounds": SplitBounds(heldout=heldout)}
    work = partial(
        filter_problems, verifier=verifier, prompts=fake_prompts(30), out=OutFile(out), source=source, **options
    )
    return measured(work)  # type: ignore[return-value]


def test_the_filter_writes_a_row_per_problem_and_names_the_source_relative_to_it(tmp_path: Path) -> None:
    source, out = tmp_path / "problems.jsonl", tmp_path / "splits" / "mine.jsonl"
    source.write_text("")
    out.parent.mkdir()
    report = filtered(out, str(source), heldout=5)
    rows = read_json_lines(out)
    assert [row["id"] for row in rows] == [prompt.id for prompt in fake_prompts(30)]
    assert {row["source"] for row in rows} == {"../problems.jsonl"}
    assert sum(row["split"] == "heldout" for row in rows) == 5 == report.counts["heldout"]
    assert [p.name for p in out.parent.iterdir()] == ["mine.jsonl"]


def test_more_held_out_than_kept_is_refused_and_the_measurement_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "split.jsonl"
    with pytest.raises(ConfigError, match=rf"heldout=29: no more problems are kept; .*; {out} has the measurement"):
        filtered(out, "s", heldout=29)
    rows = read_json_lines(out)
    assert len(rows) == 30
    assert {row["split"] for row in rows} == {"train", "dropped"}
    assert {row["samples"] for row in rows} == {4}
