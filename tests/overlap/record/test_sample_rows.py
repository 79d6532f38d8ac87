"""The rows of trajectories.jsonl: the whole story of a sample, in JSON whatever it holds."""

from __future__ import annotations

import base64
import json
import re
from array import array
from dataclasses import replace
from typing import Any

import pytest
from finished_steps import JUDGED, group, scored
from generated_samples import generated_sample
from places import ROOT

from overlap.core import Prompt, Scored, Used
from overlap.record.row_shapes import unpacked_floats, unpacked_ints
from overlap.record.sample_file import BULK_BEGINS as BULK
from overlap.record.sample_rows import FAILED, FAILED_CHARS, OTHER_CHARS, TESTS, SampleNotes, SampleRows
from overlap.record.sample_writer import notes_of_group
from sandbox.core.excerpt import Excerpt
from sandbox.core.nouns import Case, CaseResult, Program, Verdict
from sandbox.core.problem import Problem

PROBLEM = Problem("p", "stdio", (Case("1 2", "3"), Case("2 2", "4"), Case("9", "9")))
HEAD = (
    "schema split step group sample id prompt_id reward advantage parts verdict failure dropped kept_as weak passed "
    "total tokens finish truncated turns branches versions generate_s queue_s verify_s node program_sha256"
)


def text_of(prompt: Prompt) -> str:
    return "-".join(map(str, prompt.token_ids))


def program_of(prompt: Prompt, answer: str) -> tuple[Problem, Program] | None:
    return PROBLEM, Program(answer)


def line(sample: Scored, notes: SampleNotes | None = None, program_of: Any = program_of) -> bytes:
    return SampleRows("train", 3, text_of, program_of).line(sample, notes or SampleNotes())


def row(sample: Scored, notes: SampleNotes | None = None, program_of: Any = program_of) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line(sample, notes, program_of))
    return found


def case(index: int, verdict: Verdict = Verdict.WA, **said: Any) -> CaseResult:
    return CaseResult(index, verdict, 0.1, 0.2, 7, "no", **said)


def judged(*cases: CaseResult, **fields: Any) -> Scored:
    return replace(scored(0, 0, 0.0), judgement=replace(JUDGED, cases=cases, **fields))


def test_every_key_has_its_line_in_the_documentation_and_every_line_is_of_a_key() -> None:
    text = (ROOT / "docs/look.md").read_text("utf-8")
    part = text.partition("## A line of `trajectories.jsonl`")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (`.*?) \|", part, re.M)
    sample = scored(0, 0)
    used = Used(turns=2, prompted=1, sampled=1, cached=0, rerendered=0, replayed=0, unread=0)
    episode = replace(sample.trajectory, used=used, mask=b"\1\1\1\1", forks=(sample.trajectory,))
    notes = SampleNotes(learner=((0.0,) * 4, (0.0,) * 4))
    rows = SampleRows("train", 3, text_of, program_of, restore_at_s=0.0)
    written = json.loads(rows.line(replace(sample, trajectory=episode), notes))
    assert set(written) == set(re.findall(r"`(\w+)`", " ".join(lines)))


@pytest.mark.promise("samples")
def test_a_row_tells_the_whole_story() -> None:
    sample = scored(17, 1, 0.0, ended=3.0, verify=3.5, verdict=4.0, says="WA", node="10.0.0.2", finish="length")
    prompt = replace(sample.trajectory.request.prompt, prefill="```python\n")
    request = replace(sample.trajectory.request, prompt=prompt)
    cases = case(0, Verdict.AC), case(1, got=Excerpt.of("5"), exit_code=0, stderr=Excerpt.of("warn"))
    sample = replace(
        sample,
        trajectory=replace(sample.trajectory, request=request),
        judgement=replace(sample.judgement, cases=cases, compile_log="warning") if sample.judgement else None,
        program_sha256="0123456789abcdef",
    )
    notes = SampleNotes(("worst",), -0.5, -0.1, "", ((-0.5, -0.25, 0.0, -1.0),))
    numbers = {"token_ids": (7,) * 4, "prompt_token_ids": (1, 2)}
    logprobs = {"logprobs": (-0.1,) * 4, "learner_logprobs": (-0.5, -0.25, 0.0, -1.0)}
    test = {"cpu_s": 0.1, "wall_s": 0.2, "memory_bytes": 7, "message": "no"}
    assert row(sample, notes) == {
        "schema": 3, "split": "train", "step": 3, "group": 17, "sample": 1, "id": "g17s1", "prompt_id": "p",
        "reward": 0.0, "advantage": -0.5, "parts": {"task": 0.0, "punishment": -0.1}, "verdict": "WA", "failure": "",
        "dropped": "", "kept_as": ["worst"], "weak": True, "passed": 1, "total": 3, "tokens": 4, "finish": "length",
        "truncated": True, "turns": 1, "branches": 1, "versions": [[0, 0, 4]], "generate_s": 3.0, "queue_s": 0.5,
        "verify_s": 0.5, "node": "10.0.0.2", "program_sha256": "0123456789abcdef",
        "prompt": "1-2", "prefill": "```python\n", "answer": "x",
        "program": {"source": "```python\nx", "language": "python"}, "kind": "stdio", "compile_log": "warning",
        "tests": [
            {"index": 0, "verdict": "AC", **test, "exit": None, "signal": None, "input": "1 2", "expected": "3",
             "got": None},
            {"index": 1, "verdict": "WA", **test, "exit": 0, "signal": None, "input": "2 2", "expected": "4",
             "got": "5",
             "stderr": "warn"},
        ],
        **{name: packed("i", values) for name, values in numbers.items()},
        **{name: packed("f", values) for name, values in logprobs.items()},
    }  # fmt: skip


def packed(code: str, values: tuple[Any, ...]) -> str:
    return base64.b64encode(array(code, values).tobytes()).decode()


def test_the_small_values_stand_in_front_of_the_bulk_and_can_be_read_without_it() -> None:
    for seed in range(100):
        text = line(generated_sample(seed))
        head = json.loads(text[: text.index(BULK)] + b"}")
        assert list(head) == HEAD.split()
        assert len(text[: text.index(BULK)]) < 4000


@pytest.mark.promise("read-back")
@pytest.mark.parametrize("seed", range(0, 400, 4))
def test_every_sample_becomes_one_line_of_json_from_which_its_numbers_come_back(seed: int) -> None:
    sample = generated_sample(seed)
    text = line(sample)
    found, trajectory = json.loads(text), sample.trajectory
    assert text.count(b"\n") == 1
    assert text.endswith(b"}\n")
    assert (found["reward"], found["id"], found["tokens"]) == (sample.reward, sample.id, trajectory.sampled)
    for branch, made in zip(trajectory.branches, (found, *found.get("forks", ())), strict=True):
        assert tuple(unpacked_ints(made["token_ids"])) == branch.token_ids
        assert tuple(unpacked_floats(made["logprobs"])) == branch.logprobs
        assert base64.b64decode(made.get("mask", "")) == branch.mask


def test_an_episode_has_its_dialog_its_branches_and_the_learners_view_of_each() -> None:
    one, used = scored(0, 0), Used(3, 9, 30, 0, 0, 0)
    fork = replace(one.trajectory, prompt_ids=(1, 2, 9), text="left")
    whole = replace(
        one.trajectory,
        prompt_ids=(4, 5),
        token_ids=(6, 7, 8),
        logprobs=(0.0,) * 3,
        mask=b"\1\0\1",
        forks=(fork,),
        used=used,
    )
    notes = SampleNotes(learner=((-1.0, 0.0, -1.0), (-2.0,) * 4))
    found = row(replace(one, trajectory=whole), notes)
    assert (found["dialog"], found["turns"], found["branches"], found["tokens"]) == ("4-5-6-7-8", 3, 2, 6)
    assert (found["mask"], found["learner_logprobs"]) == ("AQAB", packed("f", (-1.0, 0.0, -1.0)))
    (left,) = found["forks"]
    assert (left["text"], left["finish"], left["versions"]) == ("left", "stop", [[0, 0, 4]])
    assert left["prompt_token_ids"] == packed("i", (1, 2, 9))
    assert left["learner_logprobs"] == packed("f", (-2.0,) * 4)
    assert "dialog" not in row(one)


def _raises(prompt: Prompt, answer: str) -> None:
    raise RuntimeError("a bug of the user's")


@pytest.mark.parametrize("broken", [_raises, lambda *_: 7, lambda *_: ("x", "y"), lambda *_: (PROBLEM,) * 3])
def test_user_code_that_is_wrong_costs_the_program_and_nothing_else(broken: Any) -> None:
    found = row(judged(case(1, got=Excerpt.of("5"))), program_of=broken)
    assert (found["program"], found["kind"]) == (None, "")
    assert (found["tests"][0]["input"], found["tests"][0]["got"]) == (None, "5")


@pytest.mark.parametrize("changed", [{"finish": "abort"}, {"failure": "the agent has crashed"}])
def test_of_a_sample_that_nobody_judged_the_task_is_not_asked(changed: dict[str, Any]) -> None:
    asked: list[str] = []

    def ask(prompt: Prompt, answer: str) -> None:
        asked.append(answer)

    sample = scored(0, 0, None)
    found = row(replace(sample, trajectory=replace(sample.trajectory, **changed)), program_of=ask)
    assert (asked, found["program"], found["reward"], found["failure"]) == ([], None, None, "worker died")


def test_the_first_failed_tests_are_shown_at_length_and_the_others_short() -> None:
    long = "x" * 5000
    problem = Problem("p", "stdio", tuple(Case(long + str(n), long) for n in range(100)))
    cases = [
        case(
            n,
            Verdict.AC if n % 2 or n < 40 else Verdict.WA,
            **({} if n % 2 or n < 40 else {"got": Excerpt.of(long, 800)}),
        )
        for n in range(100)
    ]
    tests = row(judged(*cases), program_of=lambda prompt, answer: (problem, Program("x")))["tests"]
    failed = [test for test in tests if test["verdict"] == "WA"]
    assert len(tests) == TESTS
    assert [test["index"] for test in failed] == [40, 42, 44]
    assert [test["index"] for test in tests] == [*range(TESTS - FAILED), 40, 42, 44]
    for test in tests:
        most = FAILED_CHARS if test in failed else OTHER_CHARS
        for name in ("input", "expected", *(("got",) if test in failed else ())):
            shown = test[name]
            assert len(shown["head"]) + len(shown["tail"]) <= most
            assert shown["bytes"] >= 5000
    assert failed[0]["input"]["sha256"] == Excerpt.of(long + "40").sha256


def test_an_advantage_is_told_where_something_was_learned_from_it() -> None:
    samples = (scored(0, 0, 1.0), scored(0, 1, 0.0), scored(0, 2, None))
    kept = replace(group(0, *samples), advantages=(0.5, -0.5, 0.0), punishments=(-0.1, 0.0, 0.0))
    dropped = replace(kept, dropped="equal_rewards")

    def told(one: Any, **how: bool) -> list[Any]:
        return [notes.advantage for _, notes in notes_of_group(one, (), {}, **({"critic": False} | how))]

    assert told(kept) == [0.5, -0.5, None]
    assert told(kept, critic=True) == told(dropped) == [None, None, None]
    parts = [row(sample, notes)["parts"] for sample, notes in notes_of_group(kept, (), {}, critic=False)]
    assert parts == [{"task": 1.0, "punishment": -0.1}, {"task": 0.0, "punishment": 0.0}, {}]
