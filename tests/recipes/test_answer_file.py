"""Answers that were recorded are neither sampled nor judged again; all of a file are sampled with the same settings."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_parts import fake_prompts

from overlap.core import Request, Scored, Trajectory, VersionSpan
from overlap.core.errors import ConfigError, StageError
from recipes.code_rl.answer_file import AnswerFile, SamplingOptions, complete_answers

SETTINGS = {"policy": "abc", "temperature": 0.6}
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


def completed(path: Path, engine: Any, judge: Any, samples: int = 4, prompts: Any = PROMPTS, **how: Any) -> AnswerFile:
    file = AnswerFile.open(path, SETTINGS)
    try:
        asyncio.run(complete_answers(engine, judge, prompts, SamplingOptions(samples), file, **how))
    finally:
        file.close()
    return file


def tallied(file: AnswerFile, samples: int = 4) -> list[tuple[int, int]]:
    return [(tally.passes, tally.samples) for tally in (file.tally(prompt, samples) for prompt in PROMPTS)]


def test_what_is_recorded_is_not_sampled_again_and_more_samples_add_only_what_is_new(tmp_path: Path) -> None:
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
    engine, seen = Engine(), list[tuple[int, int]]()
    assert tallied(completed(path, engine, Judge(), progress=lambda *done: seen.append(done))) == [(2, 4)] * 5
    assert len(engine.asked) == 13
    assert seen[-1] == (20, 20)
    assert seen == [(first, 20) for first in range(21 - len(seen), 21)]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_an_answer_that_we_could_not_judge_is_judged_again_and_not_sampled_again(tmp_path: Path) -> None:
    path, engine = tmp_path / "answers.jsonl", Engine()
    assert tallied(completed(path, engine, Judge(unable=("p0",)))) == [(0, 0), *[(2, 4)] * 4]
    file = AnswerFile.open(path, SETTINGS)
    assert (file.missing(PROMPTS, 4), file.tally(PROMPTS[0], 4).failed) == ((0, 4), 4)
    file.close()
    judge = Judge()
    assert tallied(completed(path, engine, judge)) == [(2, 4)] * 5
    assert (len(engine.asked), len(judge.judged)) == (20, 4)


def test_other_tests_have_the_answers_judged_again_and_another_prompt_has_them_sampled_again(tmp_path: Path) -> None:
    path, engine, judge = tmp_path / "answers.jsonl", Engine(), Judge()
    completed(path, engine, judge)
    other = replace(PROMPTS[0], data={"tests": "more"})
    for first, counts in ((other, (20, 24)), (replace(other, token_ids=(9, 9)), (24, 28))):
        completed(path, engine, judge, prompts=[first, *PROMPTS[1:]])
        assert (len(engine.asked), len(judge.judged)) == counts


@pytest.mark.parametrize("opened", [AnswerFile.open, AnswerFile.read])
def test_answers_sampled_with_other_settings_are_refused_with_what_differs(tmp_path: Path, opened: Any) -> None:
    completed(path := tmp_path / "answers.jsonl", Engine(), Judge())
    with pytest.raises(ConfigError, match=r"other settings: temperature 0.6 \(asked for: 0.8\); name another folder"):
        opened(path, {**SETTINGS, "temperature": 0.8})


def test_two_commands_do_not_write_into_one_file(tmp_path: Path) -> None:
    file = AnswerFile.open(tmp_path / "answers.jsonl", SETTINGS)
    with pytest.raises(ConfigError, match="another command writes there"):
        AnswerFile.open(tmp_path / "answers.jsonl", SETTINGS)
    file.close()
    AnswerFile.open(tmp_path / "answers.jsonl", SETTINGS).close()


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
        text := "".join(f"{line}\n" for line in lines).replace("HEAD", json.dumps({"answers": 1, "law": SETTINGS}))
    )
    with pytest.raises(ConfigError, match=says):
        AnswerFile.open(path, SETTINGS)
    assert path.read_text() == text
