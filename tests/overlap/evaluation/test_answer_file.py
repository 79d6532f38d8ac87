"""Answers that were recorded are neither drawn nor judged again, and only those of one law stand in a file."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from overlap.core import Request, Scored, Trajectory, VersionSpan
from overlap.errors import ConfigError, StageError
from overlap.evaluation.answer_file import AnswerFile, SamplingOptions, complete_answers
from overlap.fakes import fake_prompts

LAW = {"policy": "abc", "temperature": 0.6}
PROMPTS = fake_prompts(5)


class Engine:
    """Answers "right" and "wrong" in turn; dies at the request of number ``dies``."""

    def __init__(self, dies: int = 10**6) -> None:
        self.asked: list[Request] = []
        self.dies = dies

    async def generate(self, request: Request) -> Trajectory:
        self.asked.append(request)
        if len(self.asked) > self.dies:
            raise RuntimeError("killed")
        text = "right" if request.sample % 2 else "wrong"
        return Trajectory(request, (1, 2), (-1.0, -1.0), text, "stop", (VersionSpan(0, 0, 2),), 0.0, 0.0)


class Judge:
    """A pass is "right"; what is in ``unable`` cannot be judged, by our own fault."""

    def __init__(self, unable: tuple[str, ...] = ()) -> None:
        self.judged: list[str] = []
        self.unable = unable

    async def score(self, trajectory: Trajectory) -> Scored:
        self.judged.append(trajectory.id)
        unable = trajectory.request.prompt.id in self.unable
        return Scored(trajectory, None if unable else float(trajectory.text == "right"))


def completed(path: Path, engine: Any, judge: Any, samples: int = 4, prompts: Any = PROMPTS) -> AnswerFile:
    file = AnswerFile.open(path, LAW)
    try:
        asyncio.run(complete_answers(engine, judge, prompts, SamplingOptions(samples), file))
    finally:
        file.close()
    return file


def tallied(file: AnswerFile, samples: int = 4) -> list[tuple[int, int]]:
    return [(tally.passes, tally.samples) for tally in (file.tally(prompt, samples) for prompt in PROMPTS)]


def test_what_is_recorded_is_not_drawn_again_and_more_samples_draw_only_what_is_new(tmp_path: Path) -> None:
    path, engine, judge = tmp_path / "out" / "answers.jsonl", Engine(), Judge()
    assert tallied(completed(path, engine, judge)) == [(2, 4)] * 5
    assert (len(engine.asked), len(judge.judged)) == (20, 20)
    assert tallied(completed(path, engine, judge)) == [(2, 4)] * 5
    assert (len(engine.asked), len(judge.judged)) == (20, 20)
    assert tallied(completed(path, engine, judge, 6), 6) == [(3, 6)] * 5
    assert {request.sample for request in engine.asked[20:]} == {4, 5}
    assert {(request.temperature, request.top_p) for request in engine.asked} == {(0.6, 0.95)}


def test_a_command_that_was_stopped_goes_on_with_the_answers_that_it_had(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with pytest.raises(StageError, match="killed"):
        completed(path, Engine(dies=7), Judge())
    with path.open("ab") as file:
        file.write(b'{"id": "p4", "sample": 3, "text": "torn')
    engine = Engine()
    assert tallied(completed(path, engine, Judge())) == [(2, 4)] * 5
    assert len(engine.asked) == 13
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_an_answer_that_we_could_not_judge_is_judged_again_and_not_drawn_again(tmp_path: Path) -> None:
    path, engine = tmp_path / "answers.jsonl", Engine()
    assert tallied(completed(path, engine, Judge(unable=("p0",)))) == [(0, 0), *[(2, 4)] * 4]
    file = AnswerFile.open(path, LAW)
    assert (file.missing(PROMPTS, 4), file.tally(PROMPTS[0], 4).failed) == ((0, 4), 4)
    file.close()
    judge = Judge()
    assert tallied(completed(path, engine, judge)) == [(2, 4)] * 5
    assert (len(engine.asked), len(judge.judged)) == (20, 4)


@dataclass(frozen=True)
class _Asking:
    """What a prompt carries: the tests."""

    tests: str


def test_other_tests_have_the_answers_judged_again_and_another_prompt_has_them_drawn_again(tmp_path: Path) -> None:
    path, engine, judge = tmp_path / "answers.jsonl", Engine(), Judge()
    completed(path, engine, judge)
    completed(path, engine, judge, prompts=[replace(PROMPTS[0], data=_Asking("more")), *PROMPTS[1:]])
    assert (len(engine.asked), len(judge.judged)) == (20, 24)
    completed(path, engine, judge, prompts=[replace(PROMPTS[0], data=_Asking("more"), token_ids=(9, 9)), *PROMPTS[1:]])
    assert (len(engine.asked), len(judge.judged)) == (24, 28)


def test_answers_of_another_law_are_refused_with_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    completed(path, Engine(), Judge())
    with pytest.raises(ConfigError, match=r"other settings: temperature 0.6 \(asked for: 0.8\); name another folder"):
        AnswerFile.open(path, {**LAW, "temperature": 0.8})
    with pytest.raises(ConfigError, match="sampled with other settings"):
        AnswerFile.read(path, {**LAW, "temperature": 0.8})


def test_two_commands_do_not_write_into_one_file(tmp_path: Path) -> None:
    file = AnswerFile.open(tmp_path / "answers.jsonl", LAW)
    with pytest.raises(ConfigError, match="another command writes there"):
        AnswerFile.open(tmp_path / "answers.jsonl", LAW)
    file.close()
    AnswerFile.open(tmp_path / "answers.jsonl", LAW).close()


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["no json"], "no file of answers"),
        (['{"id": "p0", "sample": 0, "text": "x"}'], "its first line must be"),
        (["[1]"], "its first line must be"),
        (["HEAD", '{"id": "p0", "text": "x"}'], ":2.*is no answer"),
        (["HEAD", '{"id": "p0", "sample": 0, "text": 5}'], ":2.*text must be text"),
        (["HEAD", '{"id": "p0", "sample": 0, "passed": true}'], ":2.*is no answer"),
    ],
)
def test_what_is_no_file_of_answers_is_refused_and_left_as_it_is(tmp_path: Path, lines: list[str], says: str) -> None:
    (path := tmp_path / "answers.jsonl").write_text(
        text := "".join(f"{line}\n" for line in lines).replace("HEAD", json.dumps({"answers": 1, "law": LAW}))
    )
    with pytest.raises(ConfigError, match=says):
        AnswerFile.open(path, LAW)
    assert path.read_text() == text


def test_a_file_that_is_only_looked_at_is_not_made(tmp_path: Path) -> None:
    file = AnswerFile.read(tmp_path / "answers.jsonl", LAW)
    assert file.missing(PROMPTS, 4) == (20, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"temperature": -0.1}, {"top_p": 0.0}, {"temperature": 0.0}])
def test_a_law_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SamplingOptions(**wrong)
