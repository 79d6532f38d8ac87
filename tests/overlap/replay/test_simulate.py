"""A run's timing goes through the fakes again: by its own configuration as it was, by another as it would have been."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from timed_run import LEARN_S, LOAD_S, config, leave, timed

from overlap import cli
from overlap.replay.durations import config_of_run, decoding_since, held_s, read_recorded_run
from overlap.replay.simulate import measured, replay, schedule, simulate

STALE = "rollout.max_staleness=1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return leave(tmp_path_factory.mktemp("runs") / "run", config(STALE, "rollout.max_sequences=24"))


def test_the_verifiers_of_a_run_whose_trace_left_out_steps_were_no_more_idle(run: Path) -> None:
    found = read_recorded_run(str(run))
    thinned = replace(found, groups={number: group for number, group in found.groups.items() if number % 2})
    assert measured(thinned)["verifiers idle"] == pytest.approx(measured(found)["verifiers idle"], abs=0.05)
    assert simulate(thinned, thinned.cfg).results


def step_s(*overrides: str, workers: int = 2, turns: bool = False) -> float:
    """What the run takes a step by another configuration, for true."""
    results, _, began = timed(config("rollout.max_sequences=24", *overrides, workers=workers), turns=turns)
    return (results[-1].parity_span[1] - began) / len(results)


def test_by_its_own_configuration_a_run_is_simulated_as_it_was(run: Path) -> None:
    found = read_recorded_run(str(run))
    assert schedule(simulate(found, found.cfg)) == pytest.approx(measured(found), rel=1e-3)
    assert measured(found)["age, most"] == 1


@pytest.mark.parametrize(("was", "asked"), [(0, 1), (1, 0), (1, 2)])
def test_engine_and_learner_that_took_turns_take_them_in_the_simulation(tmp_path: Path, was: int, asked: int) -> None:
    cfg = config(f"rollout.max_staleness={was}", "rollout.max_sequences=24")
    found = read_recorded_run(str(leave(tmp_path / "run", cfg, turns=True)))
    assert schedule(simulate(found, found.cfg)) == pytest.approx(measured(found), rel=1e-3)
    other = f"rollout.max_staleness={asked}"
    simulated = schedule(simulate(found, config_of_run(str(tmp_path / "run"), [other])))
    assert simulated["s/step"] == pytest.approx(step_s(other, turns=True), rel=0.02)


def test_what_a_sleep_waited_for_is_no_part_of_learning_in_a_run_that_drained(tmp_path: Path) -> None:
    cfg = config(STALE, "rollout.in_flight=drain", "rollout.max_sequences=24")
    found = read_recorded_run(str(leave(tmp_path / "run", cfg, turns=True)))
    assert {round(seconds, 6) for seconds, _ in found.learned.values()} == {LEARN_S}
    assert schedule(simulate(found, found.cfg)) == pytest.approx(measured(found), rel=1e-3)


def test_a_run_that_was_ended_early_is_simulated_for_the_steps_that_it_took(run: Path, tmp_path: Path) -> None:
    rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    folder = _broken(run, tmp_path / "short", "metrics.jsonl", "".join(rows[:7]))
    assert replay(folder, ["rollout.max_staleness=2"])[3].split() == ["steps", "7", "7", "7"]
    assert replay(folder, ["run.steps=9"])[3].split() == ["steps", "7", "7", "9"]


@pytest.mark.parametrize(
    ("done", "named"),
    [
        (["run.save_every=2"], "run.save_every=2"),
        (["run.eval_every=3", "run.keep_rollouts=true"], "run.eval_every=3, run.keep_rollouts=true"),
    ],
)
def test_a_run_that_saved_or_evaluated_is_replayed_with_a_warning(tmp_path: Path, done: list[str], named: str) -> None:
    found = leave(tmp_path / "run", config(*done, "run.steps=3"))
    assert f"WARNING: saving and evaluations ({named}) are left out" in replay(str(found))[-1]


def test_a_run_that_did_neither_is_replayed_without_one_and_rows_of_evaluations_are_no_steps(
    run: Path, tmp_path: Path
) -> None:
    assert not [line for line in replay(str(run)) if "WARNING" in line]
    rows = '{"step": 0, "eval/pass_at_1": 0.5}\n' + (run / "metrics.jsonl").read_text()
    assert replay(_broken(run, tmp_path / "evaluated", "metrics.jsonl", rows))[1:] == replay(str(run))[1:]


@pytest.mark.parametrize(
    ("asked", "workers"),
    [
        (("rollout.max_staleness=0",), 2),
        (("rollout.max_staleness=2",), 2),
        ((STALE,), 1),
        ((STALE, "rollout.in_flight=drain"), 2),
        ((STALE, "rollout.max_sequences=8"), 2),
    ],
)
def test_another_configuration_takes_in_the_simulation_what_it_takes(
    run: Path, asked: tuple[str, ...], workers: int
) -> None:
    cfg = config_of_run(str(run), [*asked, f"verify.workers={workers}"])
    assert schedule(simulate(read_recorded_run(str(run)), cfg))["s/step"] == pytest.approx(
        step_s(*asked, workers=workers), rel=0.02
    )


def test_a_run_that_drained_is_simulated_as_it_was(tmp_path: Path) -> None:
    left = leave(tmp_path / "run", config(STALE, "rollout.in_flight=drain"))
    found = read_recorded_run(str(left))
    assert list(found.loads.values()) == pytest.approx([LOAD_S] * len(found.loads))  # not what it waited for
    assert schedule(simulate(found, found.cfg))["s/step"] == pytest.approx(measured(found)["s/step"], rel=1e-3)


def test_what_was_not_recorded_is_drawn_from_what_was_the_same_each_time(run: Path) -> None:
    found = read_recorded_run(str(run))
    more = ["run.steps=30", "rollout.samples_per_group=6", "rollout.groups_per_step=5"]
    cfg = config_of_run(str(run), more)
    simulated = simulate(found, cfg)
    samples = [s for r in simulated.results for s in r.batch.all_samples]
    assert len(samples) == 30 * 5 * 6
    known = {round(taken.verify_s, 4) for group in found.groups.values() for taken in group.values()}
    assert {round(s.finished_s - s.started_s, 4) for s in samples} <= known
    assert schedule(simulated) == schedule(simulate(found, cfg))
    assert schedule(simulated) != schedule(simulate(found, config_of_run(str(run), [*more, "run.seed=1"])))


def test_learning_takes_its_time_by_the_samples_of_the_step(run: Path) -> None:
    cfg = config_of_run(str(run), ["rollout.groups_per_step=8"])
    result = simulate(read_recorded_run(str(run)), cfg).results[0]
    share = len(result.batch.groups) / 8
    drawn = {LEARN_S * 8 * share / groups for groups in range(1, 5)}
    assert any(result.learn_span[1] - result.learn_span[0] == pytest.approx(seconds) for seconds in drawn)


def test_the_simulated_schedule_is_a_trace_that_can_be_replayed(run: Path, tmp_path: Path) -> None:
    folder, trace = tmp_path / "again", tmp_path / "trace.json"
    lines = replay(str(run), ["rollout.max_staleness=2"], trace)
    shutil.copytree(run, folder)
    shutil.copy(trace, folder / "trace.json")
    again = replay(str(folder), ["rollout.max_staleness=2"])
    assert [line.split()[-1] for line in again[3:-1]] == [line.split()[-1] for line in lines[3:-1]]


def test_the_engine_has_room_for_the_oldest_group_first() -> None:
    spans = {(1, 0): (0.0, 4.0), (2, 0): (0.0, 5.0), (0, 0): (1.0, 6.0), (0, 1): (2.0, 2.5)}
    assert decoding_since(spans, 1) == {(1, 0): 0.0, (0, 1): 2.0, (0, 0): 4.0, (2, 0): 0.0}
    assert decoding_since(spans, 9) == {place: start for place, (start, _) in spans.items()}


def test_samples_that_share_a_judgement_hold_one_verifier_between_them() -> None:
    spans = {(0, 0): (1.0, 5.0), (0, 1): (2.0, 4.0), (1, 0): (3.0, 4.0), (1, 1): (6.0, 6.5)}
    assert held_s(spans, 3) == {(0, 0): 4.0, (0, 1): 2.0, (1, 0): 1.0, (1, 1): 0.5}
    assert held_s(spans, 1) == pytest.approx(
        {(0, 0): 1 + 1 / 2 + 1 / 3 + 1, (0, 1): 1 / 2 + 1 / 3, (1, 0): 1 / 3, (1, 1): 0.5}
    )


def test_the_command_shows_the_run_beside_its_simulations(run: Path, capsys: pytest.CaptureFixture) -> None:
    command = ["replay", str(run), "rollout.max_staleness=2", "verify.workers=500"]  # more than any laptop has
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert "12 steps of 4 groups x 4 samples, rollout.max_staleness=1" in out
    assert "asked: rollout.max_staleness=2 verify.workers=500" in out
    rows = {line[:24].strip(): line[24:].split() for line in out.splitlines()[2:-1]}
    assert rows[""] == ["recorded", "simulated", "asked"]
    assert out.splitlines()[-1].startswith("every part takes as long as it did in the run")
    assert rows["s/step"][0] == rows["s/step"][1]
    assert float(rows["speed-up"][2]) > 1


def _broken(run: Path, folder: Path, name: str, text: str | None) -> str:
    shutil.copytree(run, folder)
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text)
    return str(folder)


ROW = '{"ph": "X", "name": "g0s0", "cat": "generate", "ts": 1, "dur": NaN, "args": {"tokens": 1, "finish": "stop"}}'


def refused(capsys: pytest.CaptureFixture, told: str, *words: str) -> None:
    assert cli.main(["replay", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert told in said.err


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("config.yaml", None, "is missing: name the directory of a run"),
        ("config.yaml", "- 1", "write sections"),
        ("trace.json", None, "is missing: name the directory of a run"),
        *(("trace.json", text, "is no trace of a run") for text in ("[", "[1]", '{"a": 1}')),
        ("trace.json", f"[{ROW}]", "'g0s0' has no time"),
        ("trace.json", "[]", "holds no step that was learned"),
        ("metrics.jsonl", "", "holds no step that was learned"),
        ("metrics.jsonl", "1\n", "its metrics.jsonl cannot be read"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture, name: str, text: str | None, told: str
) -> None:
    refused(capsys, told, _broken(run, tmp_path / "broken", name, text))


def test_what_cannot_be_simulated_is_refused_in_one_line(run: Path, capsys: pytest.CaptureFixture) -> None:
    refused(capsys, "is missing: name the directory of a run", "nowhere")
    refused(capsys, "verify.workers='0': use a whole number", str(run), "verify.workers=0")
    refused(capsys, "is not a field", str(run), "rollout.staleness=2")
    refused(capsys, "exists already", str(run), "--trace", str(run / "trace.json"))


def test_a_trace_of_an_evaluation_or_another_lane_is_passed_over(run: Path, tmp_path: Path) -> None:
    events = json.loads((run / "trace.json").read_text())
    for name, lane in (("after step 2", "evaluate"), ("a thing", "else")):
        events.append({"ph": "X", "name": name, "cat": lane, "ts": 1.0, "dur": 2.0, "args": {}})
    folder = _broken(run, tmp_path / "more", "trace.json", json.dumps(events))
    assert read_recorded_run(folder).groups == read_recorded_run(str(run)).groups
