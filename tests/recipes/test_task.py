"""The code task: which prompts there are, what is judged, and when a reward is 1."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from places import ROOT
from rows import Bytes

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import LeftOut, Prompt
from overlap.core.errors import ConfigError
from overlap.rows import sources
from overlap.task import load_task
from recipes.code_rl.cases import Judging
from recipes.code_rl.task import SPLITS, CodeTask, ReasoningCodeTask
from sandbox.core.nouns import Judgement, Verdict

ROWS = [
    {
        "id": f"add{i}",
        "kind": "function",
        "statement": f"Write `add{i}(n)`.",
        "fn_name": f"add{i}",
        "starter": f"def add{i}(n):",
        "tests": [{"input": "[1]", "output": str(i + 1)}],
    }
    for i in range(40)
]
STDIO = {"id": "io", "kind": "stdio", "statement": "Print 2.", "tests": [{"input": "", "output": "2"}]}
CONFIGS = sorted((ROOT / "recipes" / "code_rl" / "configs").glob("*.yaml"))


def text(prompt: Prompt) -> str:
    return bytes(prompt.token_ids).decode()


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*ROWS, STDIO]))
    return str(path)


@pytest.fixture(params=[CodeTask])
def asked(source: str, request: pytest.FixtureRequest) -> tuple[CodeTask, Prompt]:
    """A task of this class, and its first prompt."""
    task = request.param(train=source, stop=("```",))
    return task, task.prompts(Bytes(), "train")[0]


REASONING = pytest.mark.parametrize("asked", [ReasoningCodeTask], indirect=True)


def judgement(verdict: Verdict) -> Judgement:
    return Judgement("p", verdict, (), 0, 1, False, "B", "python", "3", "", 0.0, 0.0)


def test_a_prompt_ends_inside_the_fence_right_after_the_starter(asked: tuple[CodeTask, Prompt]) -> None:
    _, prompt = asked
    assert text(prompt).endswith(f"<assistant>{prompt.prefill}")
    assert prompt.prefill == f"```python\ndef {prompt.id}(n):"
    assert prompt.data.statement in text(prompt)


def test_a_stdio_prompt_asks_for_a_silent_program_in_an_empty_fence(source: str) -> None:
    prompts = [*CodeTask(train=source).prompts(Bytes(), "train"), *CodeTask(train=source).prompts(Bytes(), "heldout")]
    prompt = next(p for p in prompts if p.id == "io")
    assert prompt.prefill == "```python\n"
    assert "standard input" in text(prompt)


def test_a_heldout_source_may_share_no_problem_with_train(source: str) -> None:
    with pytest.raises(ConfigError, match="trained on too"):
        CodeTask(train=source, heldout=source).prompts(Bytes(), "train")


def test_prompts_of_any_length_are_given_and_rows_that_give_none_stand_among_them(source: str) -> None:
    with Path(source).open("a") as file:
        file.write('{"id": "odd", "kind": "quiz", "statement": "?", "tests": []}\n')
    entries = CodeTask(train=source).prompts(Bytes(), "train")
    lines = len(Path(source).read_text().splitlines())
    assert [row for row in entries if isinstance(row, LeftOut)] == [
        LeftOut(f"{source}:{lines}", "malformed", "'quiz': kind must be one of stdio, function, assert, interactive")
    ]
    assert all(prompt.place.startswith(f"{source}:") for prompt in entries)
    assert not any(isinstance(row, LeftOut) for row in CodeTask(train=source).prompts(Bytes(), "heldout"))


def test_an_answer_becomes_a_program_for_its_problem(asked: tuple[CodeTask, Prompt]) -> None:
    task, prompt = asked
    job = task.program(prompt, f"{prompt.prefill}\n    return n\n```")
    assert job is not None
    assert (job[0].id, job[1].source) == (prompt.id, f"def {prompt.id}(n):\n    return n\n")
    assert task.program(prompt, "```python\nsomething else\n```") is None  # its start is forged


def test_only_an_accepted_program_is_rewarded(asked: tuple[CodeTask, Prompt]) -> None:
    task, prompt = asked
    assert {v: task.reward(prompt, "", judgement(v)) for v in Verdict} == {v: float(v is Verdict.AC) for v in Verdict}


@REASONING
def test_an_answer_without_a_program_gets_nothing_without_a_run(asked: tuple[CodeTask, Prompt]) -> None:
    task, prompt = asked
    assert task.program(prompt, "I cannot do that.") is None
    assert task.reward(prompt, "I cannot do that.", None) == 0.0


@REASONING
def test_a_reasoning_prompt_leaves_the_turn_to_the_model_and_reads_what_follows_the_thoughts(
    asked: tuple[CodeTask, Prompt],
) -> None:
    task, prompt = asked
    assert prompt.prefill == ""
    assert prompt.data.starter in text(prompt)
    assert task.program(prompt, "hm\n```python\ndraft\n```") is None
    job = task.program(prompt, "hm\n```python\ndraft\n```\n</think>\n```python\nfinal\n```")
    assert job is not None
    assert job[1].source == "final\n"


@pytest.mark.parametrize("asked", [CodeTask, ReasoningCodeTask], indirect=True)
def test_task_and_prompts_can_go_to_another_process(asked: tuple[CodeTask, Prompt]) -> None:
    copy, prompt = pickle.loads(pickle.dumps(asked))
    assert copy == asked[0]
    assert copy.reward(prompt, "", None) == 0.0


@pytest.mark.parametrize("how", ["divided", "split file", "split file twice", "named"])
def test_only_training_problems_lose_tests_and_each_file_is_read_once(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[Path] = []
    read = sources._file
    monkeypatch.setattr(sources, "_file", lambda path, field: files.append(path) or read(path, field))
    tests = [{"input": f"[{'1' * n}]", "output": "1"} for n in range(1, 31)]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({**row, "tests": tests}) + "\n" for row in ROWS))
    train, heldout = str(rows), ""
    if how.startswith("split file"):
        marks = [
            {"id": r["id"], "split": "heldout" if i < 5 else "train", "source": str(rows)} for i, r in enumerate(ROWS)
        ]
        train = str(tmp_path / "split.jsonl")
        Path(train).write_text("".join(json.dumps(mark) + "\n" for mark in marks))
        heldout = train if how == "split file twice" else ""
    elif how == "named":
        heldout = str(tmp_path / "others.jsonl")
        Path(heldout).write_text(json.dumps({**ROWS[0], "id": "x", "statement": "Another.", "tests": tests}) + "\n")
    task = CodeTask(train, heldout, Judging(3))
    assert {len(problem.problem.cases) for problem in task.problems("train")} == {3}
    assert {len(problem.problem.cases) for problem in task.problems("heldout")} == {30}
    assert sorted(files) == sorted({rows, Path(train), *([Path(heldout)] if heldout else [])})


def test_a_file_that_was_changed_is_read_again(source: str) -> None:
    task = CodeTask(train=source)
    task.problems("train")
    Path(source).write_text("".join(json.dumps({**row, "id": f"new{i}"}) + "\n" for i, row in enumerate(ROWS)))
    assert {problem.id[:3] for split in ("heldout", "train") for problem in task.problems(split)} == {"new"}


def test_the_default_policy_trains_on_its_measured_split() -> None:
    task = CodeTask.from_config(Config())
    train, heldout = task.problems("train"), task.problems("heldout")
    assert task.train == str(SPLITS["smollm2-135m-instruct"])
    assert 40 <= len(train) <= 64
    assert len(heldout) >= 20
    assert {p.id for p in train}.isdisjoint(p.id for p in heldout)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_configuration_is_valid_and_names_a_task(path: Path) -> None:
    cfg = load_config(path, ["verify.workers=1"])
    assert callable(load_task(cfg.data.task, cfg).prompts)


def test_each_configuration_is_documented() -> None:
    readme = (ROOT / "recipes" / "code_rl" / "README.md").read_text()
    assert [path.name for path in CONFIGS if f"configs/{path.name}" not in readme] == []
