"""scripts/eval_deepcoder.sh: which sets, which configuration, and figures that can be checked by hand."""

from __future__ import annotations

import json
import math
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from rows import OWN, Bytes, jsonl, refusal
from samples import SAMPLES
from tiny_policy import make_tiny_policy

from overlap.config.load import load_config
from overlap.core.errors import ConfigError
from overlap.placement.devices import Devices
from overlap.placement.seats import place
from overlap.policy.resolve import resolve_policy
from recipes.code_rl import evaluate
from recipes.code_rl.answer_file import AnswerFile, SamplingOptions
from recipes.code_rl.evaluate import DEFAULT_CONFIG, OTHER_CONFIG, fitting_here, located, main, sampling_settings
from recipes.code_rl.evaluation_sets import (
    HELD_OUT,
    KNOWN,
    ContestWindow,
    EvaluationTask,
    code_task,
    read_set,
    requested_sets,
)

CFG = load_config(DEFAULT_CONFIG)
DEFAULT = ["--config", str(DEFAULT_CONFIG)]
RIGHT_OF_16 = (0,) * 8 + (16,) * 4 + (8,) * 4 + (1,) * 2 + (4,) * 2
"""Right answers to each of 20 problems."""
PASS_AT_1 = 0.33125
"""(4 x 16 + 4 x 8 + 2 x 1 + 2 x 4) / (20 x 16)"""
PASS_AT_8 = 0.5461383061383062
"""1 - C(16 - c, 8) / C(16, 8), with C(16, 8) = 12870: 1 for c = 16, 12869 / 12870 for 8, 1 / 2 for 1, 25 / 26 for 4.
(4 + 4 x 12869 / 12870 + 2 / 2 + 2 x 25 / 26) / 20."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_policy(tmp_path_factory.mktemp("policy") / "tiny"))


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        def __init__(self, *args: Any, **named: Any) -> None:
            pass

        async def start(self) -> None:
            raise AssertionError("the engine was started, and nothing is to be drawn")

        def pids(self) -> tuple[int, ...]:
            return ()

        async def close(self) -> None:
            pass

    monkeypatch.setattr("overlap.generate.client.EngineClient", Never)


def asked_for(words: list[str]) -> evaluate.Evaluation:
    return evaluate.evaluation_of(evaluate.evaluate_parser().parse(words))


def problem(number: int) -> dict[str, Any]:
    tests = [{"input": f"{n}\n", "output": str(n + number)} for n in (1, 5)]
    return {"id": f"add{number}", "kind": "stdio", "statement": f"Add {number}.", "tests": tests}


def recorded(folder: Path, policy: str) -> None:
    """16 answers to each of the 20 problems: the right ones print the sum, the others one more."""
    law = sampling_settings(CFG, resolve_policy(policy), SamplingOptions())
    rows: list[dict[str, Any]] = [{"answers": 1, "law": law}]
    for number, right in enumerate(RIGHT_OF_16):
        for sample in range(16):
            text = f"print(int(input()) + {number if sample % 16 >= 16 - right else number + 1})\n```"
            rows.append({"id": f"own/add{number}", "sample": sample, "text": text})
    folder.mkdir()
    jsonl(folder / "answers.jsonl", *rows)


@pytest.mark.promise("evaluation")
@pytest.mark.usefixtures("no_engine")
def test_recorded_answers_give_the_pass_rates_that_are_computed_by_hand(
    tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pytest.approx(PASS_AT_8) == (8 - 4 / math.comb(16, 8) + 1 + 50 / 26) / 20
    source = jsonl(tmp_path / "own.jsonl", *map(problem, range(20)))
    recorded(tmp_path / "out", policy)
    words = [policy, *DEFAULT, "--set", f"own={source}", "--out", str(tmp_path / "out")]
    for _ in range(2):  # by the sandbox, and then from the file
        assert main(words) == 0
        (found,) = json.loads((tmp_path / "out" / "evaluation.json").read_text())["sets"]
        assert found["pass_at"]["1"]["value"] == pytest.approx(PASS_AT_1, abs=1e-12)
        assert found["pass_at"]["8"]["value"] == pytest.approx(PASS_AT_8, abs=1e-12)
        assert found["pass_at"]["8"]["low"] < PASS_AT_8 < found["pass_at"]["8"]["high"]
        assert [tally["passes"] for tally in found["tallies"]] == list(RIGHT_OF_16)
        assert (found["problems"], found["judged"], found["not_judged"]) == (20, 320, 0)
    said = capsys.readouterr()
    assert "own  20        33.1% (" in said.out
    assert "0 to draw, 320 more to judge" in said.err
    assert said.err.count("starting") == 1


def test_a_command_that_goes_on_does_not_draw_the_same_answers_again(tmp_path: Path, policy: str) -> None:
    source = jsonl(tmp_path / "own.jsonl", problem(0))
    words = [policy, *DEFAULT, "--set", f"own={source}", "--out", str(tmp_path / "out")]
    seeds = []
    for answers in range(3):
        asked = asked_for(words)
        seeds.append(asked.prepare(tmp_path).cfg.run.seed)
        assert asked.file is not None
        asked.file.close()
        with (tmp_path / "out" / "answers.jsonl").open("a") as file:
            file.write(json.dumps({"id": "own/add0", "sample": answers, "text": "x"}) + "\n")
    assert len(set(seeds)) == 3


def test_no_problem_is_left_out_for_a_prompt_that_the_policy_has_room_for(tmp_path: Path, policy: str) -> None:
    rows = [{**problem(n), "statement": "x" * length} for n, length in enumerate((10, 1500, 3000))]
    words = [policy, *DEFAULT, "--set", jsonl(tmp_path / "own.jsonl", *rows)]
    asked = asked_for([*words, "--out", str(tmp_path / "out")])
    prepared = asked.prepare(tmp_path, read_only=True)  # this policy has a context of 2048 tokens
    assert [prompt.id for prompt in prepared.heldout] == ["own/add0", "own/add1"]
    assert [row.reason for row in asked.splits["own"].left_out] == ["prompt too long"]
    assert prepared.cfg.context_tokens == 2047


def test_without_arguments_the_default_policy_answers_the_held_out_problems_that_are_shipped() -> None:
    asked = asked_for([])
    assert asked.cfg.model.policy == "smollm2-135m-instruct"
    assert [found.name for found in asked.sets] == [HELD_OUT]
    assert len(read_set(asked.sets[0], asked.cfg).problems.problems) == 32
    assert (asked.draw, asked.ks, asked.limit) == (SamplingOptions(16, 0.6, 0.95), (1, 8), None)


def test_a_policy_of_a_run_is_asked_as_it_was_trained(tmp_path: Path) -> None:
    run = tmp_path / "first"
    (run / "policy").mkdir(parents=True)
    (run / "config.yaml").write_text("model:\n  response_tokens: 77\n")
    assert located(str(run), None) == (str(run / "policy"), run / "config.yaml")
    assert located(str(run / "policy"), None) == (str(run / "policy"), run / "config.yaml")
    assert located(str(run), "mine.yaml") == (str(run / "policy"), Path("mine.yaml"))
    assert located("", None)[1] == DEFAULT_CONFIG
    assert located("own/model", None)[1] == OTHER_CONFIG
    asked = asked_for([str(run), "--tokens", "99"])
    assert asked.cfg.model.response_tokens == 99


# --- sets -----------------------------------------------------------------------------------------------------


def names(words: list[str]) -> list[tuple[str, str]]:
    return [(found.name, found.source) for found in requested_sets(words, ContestWindow(), (HELD_OUT,))]


def test_a_set_is_a_known_name_a_source_or_a_name_for_a_source() -> None:
    assert names(["humaneval+"]) == [("humaneval+", KNOWN["humaneval+"].source)]
    assert names(["/data/mbpp v1.jsonl.gz"]) == [("mbpp-v1", "/data/mbpp v1.jsonl.gz")]
    assert names(["own/set:a:test"]) == [("set-a-test", "own/set:a:test")]
    assert names(["livecodebench=/data/lcb"]) == [("livecodebench", "/data/lcb")]
    assert names([]) == [(HELD_OUT, "")]
    assert requested_sets(["livecodebench=/data/lcb"], ContestWindow(), ())[0].window == KNOWN["livecodebench"].window
    assert requested_sets(["humaneval+=/data/he"], ContestWindow(), ())[0].packages == ("numpy",)
    for wrong in (["=x"], ["a="], ["a=x", "a=y"], ["/d/a.jsonl", "/e/a.json"]):
        with pytest.raises(ConfigError):
            names(wrong)


def dated(tmp_path: Path, *days: Any) -> str:
    good = SAMPLES["LiveCodeBench"].good
    rows = [{**good, "question_id": f"q{n}", "contest_date": day} for n, day in enumerate(days)]
    return jsonl(tmp_path / "lcb.jsonl", *rows)


def test_a_window_holds_the_contests_of_its_first_and_last_day_and_those_between(tmp_path: Path) -> None:
    source = dated(tmp_path, "2024-07-31T00:00:00", "2024-08-01T00:00:00", "2025-02-01", "2025-02-02T10:00:00")
    for word, window, inside in (
        (f"livecodebench={source}", ContestWindow(), ["q1", "q2"]),
        (source, ContestWindow(first=date(2025, 2, 2)), ["q3"]),
    ):
        found = read_set(requested_sets([word], window, ())[0], CFG)
        assert [p.id for p in found.problems.problems] == inside
        assert (found.outside, found.dated) == (4 - len(inside), True)
    with pytest.raises(ConfigError, match="none in this window"):
        read_set(requested_sets([source], ContestWindow(last=date(2020, 1, 1)), ())[0], CFG)


def test_problems_of_every_set_keep_all_of_their_tests_and_ids_name_the_set(tmp_path: Path) -> None:
    many = {**OWN, "tests": [{"input": f"[{n}]", "output": str(n + 1)} for n in range(40)]}
    sets = requested_sets([f"{name}={jsonl(tmp_path / name, many)}" for name in ("a", "b")], ContestWindow(), ())
    task = EvaluationTask(code_task(CFG), [read_set(asked, CFG) for asked in sets])
    prompts: list[Any] = task.prompts(Bytes(), "heldout")
    assert [prompt.id for prompt in prompts] == ["a/inc", "b/inc"]
    assert {len(prompt.data.problem.cases) for prompt in prompts} == {40}
    assert task.prompts(Bytes(), "train") == []


# --- wrong words ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--bogus"], "there is no --bogus"),
        (["--samples", "none"], "use a whole number"),
        (["--samples", "4", "--k", "8"], "pass@k needs k samples"),
        (["--top-p", "1.5"], "use a share above 0"),
        (["--temperature", "3"], "use a number from 0 to 2"),
        (["--from", "yesterday"], "write a date as 2024-08-01"),
        (["--from", "2025-01-01", "--to", "2024-01-01"], "is after"),
        (["--set", "x="], "write NAME=SOURCE"),
        (["--set", "human-eval"], "did you mean humaneval+?"),
        (["--set", "mine"], "no such set and no such file; known are livecodebench"),
        (["/no/such/policy"], "no such directory"),
        (["learn.lrr=1"], "did you mean learn.lr?"),
        (["one", "two"], "two is not known here"),
        (["--config", "/no/such.yaml"], "cannot be read"),
        (["--out", "/etc/passwd"], "is a file; name a folder"),
        (["--out", "-"], "is standard output; name a folder"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_2(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refusal(main, words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_engine")
def test_a_dry_run_says_what_would_be_drawn_and_makes_nothing(
    tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sets = [
        f"own={jsonl(tmp_path / 'own.jsonl', *map(problem, range(3)))}",
        f"lcb={dated(tmp_path, '2024-09-01', 'never')}",
    ]
    words = "--dry-run --samples 4 --tokens 64 model.prompt_tokens=512 --from 2024-01-01 --limit 2"
    assert main([policy, *words.split(), "--set", sets[0], "--set", sets[1]]) == 0
    said = capsys.readouterr().out
    assert "12 answers to draw, 0 more to judge" in said
    assert "left out  lcb: 1 malformed" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lcb.jsonl", "own.jsonl"]


def test_answers_longer_than_the_policy_knows_are_refused_before_an_engine_is_started(
    tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = f"own={jsonl(tmp_path / 'own.jsonl', *map(problem, range(3)))}"
    assert main([policy, "--dry-run", "--tokens", "100000", "--set", own]) == 2
    assert "model.policy has a context of" in capsys.readouterr().err


def test_the_law_of_a_policy_is_that_of_its_weights_wherever_they_lie(tmp_path: Path, policy: str) -> None:
    other = make_tiny_policy(tmp_path / "other", seed=1)
    same = make_tiny_policy(tmp_path / "same")
    laws = [sampling_settings(CFG, path, SamplingOptions()) for path in (Path(policy), same, other)]
    assert laws[0] == laws[1] != laws[2]
    assert {"temperature": 0.6, "top_p": 0.95}.items() <= laws[0].items()
    file = AnswerFile.open(tmp_path / "answers.jsonl", laws[0])
    file.close()
    assert AnswerFile.read(tmp_path / "answers.jsonl", laws[1]).settings == laws[1]


@pytest.mark.parametrize(("gpus", "parallel"), [(0, 1), (1, 1), (2, 2), (3, 1), (6, 2), (8, 4)])
def test_every_gpu_of_the_machine_answers(monkeypatch: pytest.MonkeyPatch, gpus: int, parallel: int) -> None:
    monkeypatch.setattr("recipes.code_rl.evaluate.devices_here", lambda: Devices.gpus(gpus))
    here = [f"{name}={value}" for name, value in fitting_here().items()]
    placed = place(load_config(None, here), Devices.gpus(gpus), learner=False)
    assert [len(seat.devices) for seat in placed.engines] == ([parallel] * (gpus // parallel) if gpus else [0])
