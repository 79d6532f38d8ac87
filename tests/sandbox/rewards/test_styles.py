"""Reward functions of other trainers, checked as they stand: `sandbox check-reward` finds their style."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from package_files import Command

from sandbox.rewards.styles import STYLES, Answered, BadReward, MissingColumn
from sandbox.zoo import exhibits

ONCE = ("--no-zoo", "--repeats", "1")
KNOWS = """
from sandbox.zoo import catalogue
RIGHT = {sample.program.source.strip() for sample in catalogue.labelled_pairs() if sample.right}

def block(text):
    return text.split("```python\\n")[-1].split("```")[0].strip()

def good(text):
    return 1.0 if block(text) in RIGHT else 0.0

"""
FORMS = {
    "plain": "def reward(problem, program, language):\n    return program.strip() in RIGHT\n",
    "trl": "def reward(completions, verification_info, **kwargs):\n"
           "    assert verification_info[0]['test_cases'] is not None\n"
           "    return [good(said[0]['content']) for said in completions]\n",
    "verl": "def reward(data_source, solution_str, ground_truth, extra_info=None):\n"
            "    import json\n    json.loads(ground_truth)\n    return {'score': good(solution_str), 'acc': 1}\n",
}  # fmt: skip


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module `rewards`, found from the current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "rewards.py"


def test_every_style_has_a_form_here() -> None:
    assert FORMS.keys() == STYLES.keys()


@pytest.mark.parametrize("style", FORMS)
def test_a_good_function_of_each_style_is_found_and_clean(module: Path, command: Command, style: str) -> None:
    module.write_text(KNOWS + FORMS[style])
    shown = command(0, "check-reward", "rewards:reward", *ONCE).out
    assert f"rewards:reward ({style}): 41 programs (22 right, 19 wrong, 0 hostile), 41 calls" in shown
    assert json.loads(command(0, "check-reward", "rewards.py:reward", *ONCE, "--style", style, "--json").out)["clean"]


@pytest.mark.parametrize(
    ("body", "words", "line"),
    [
        ("def reward(*given, **more): ...", (), r"add --style plain or --style trl or --style verl"),
        ("def reward(a): ...", (), "fits no style of reward functions; write one of plain: def reward(problem"),
        ("def reward(completions): ...", (), "looks like a reward of trl, but cannot be called as one"),
        (
            "def reward(problem, program): ...",
            (),
            "looks like a reward of plain, but cannot be called as one (too many",
        ),
        (FORMS["trl"], ("--style", "verl"), "write `def compute_score(data_source, solution_str"),
        ("def reward(completions, gold, **kw): ...", (), "missing a required argument: 'gold'; --row module:function"),
        (FORMS["trl"], ("--row", "json:dumps"), "--row raised ValueError"),
        ("reward = 7", (), "rewards:reward: reward is not a function"),
    ],
)
def test_a_signature_that_does_not_fit_is_one_line_and_exit_code_2_before_any_program(
    module: Path, command: Command, body: str, words: tuple[str, ...], line: str
) -> None:
    module.write_text(body)
    said = command(2, "check-reward", "rewards:reward", *ONCE, *words).err
    assert line in said
    assert said.count("\n") == 1


def test_columns_of_ones_own_are_made_by_a_function_or_stand_in_the_samples(module: Path, command: Command) -> None:
    form = (
        "def reward(completions, gold, **kwargs):\n    return [float(g in str(c)) for c, g in zip(completions, gold)]\n"
    )
    module.write_text(
        form + "def rows(problem):\n    return {'prompt': 'add', 'gold': problem['cases'][0]['expected']}\n"
    )
    problem = exhibits.SUM.to_json()
    samples = [{"id": "paid", "problem": problem, "program": "print(7)", "right": False}]
    Path("mine.jsonl").write_text(json.dumps(samples[0]) + "\n")
    words = ("check-reward", "rewards:reward", *ONCE, "--samples", "mine.jsonl", "--json")
    report = json.loads(command(1, *words, "--row", "rewards:rows").out)
    assert "paid" in report["false_accepts"]
    assert report["replies"]["paid"][0]["score"] == 1.0
    Path("mine.jsonl").write_text(json.dumps(samples[0] | {"row": {"gold": "8"}}) + "\n")
    assert "paid" not in json.loads(command(1, *words, "--row", "rewards:rows").out)["false_accepts"]


def test_answers_are_fenced_unless_they_are_asked_for_bare(module: Path, command: Command) -> None:
    module.write_text(
        "def reward(completions, **kw):\n    return [float('```' in c[0]['content']) for c in completions]\n"
    )
    kinds = ("--kind", "stdio", "--language", "python")
    fenced = json.loads(command(1, "check-reward", "rewards:reward", *ONCE, *kinds, "--json").out)
    bare = json.loads(command(1, "check-reward", "rewards:reward", *ONCE, *kinds, "--json", "--bare").out)
    assert (fenced["false_rejects"], bare["false_accepts"]) == ([], [])
    assert len(fenced["false_accepts"]) + len(bare["false_rejects"]) == fenced["samples"] < 41


def test_findings_have_a_severity_and_the_worst_come_first(module: Path, command: Command) -> None:
    module.write_text("def reward(problem, program, language):\n    if 'lambda' in program: 1 / 0\n    return 1.0\n")
    report = json.loads(command(1, "check-reward", "rewards:reward", *ONCE, "--json").out)
    assert {(found["severity"], found["kind"]) for found in report["findings"]} == {
        ("high", "false accept"), ("medium", "crash"),
    }  # fmt: skip
    assert report["findings"][-1]["kind"] == "crash"
    assert [f["id"] for f in report["findings"] if f["kind"] == "false accept"] == report["false_accepts"]
    paid = json.loads(command(1, "zoo", "rewards:reward", "--only", "prefix-of-the-output", "--json").out)
    assert [found["severity"] for found in paid["findings"]] == ["critical"] * 3


def test_one_sample_is_shown_with_its_program_its_problem_and_why(module: Path, command: Command) -> None:
    module.write_text(KNOWS + "def reward(completions, **kwargs):\n    return [1.0 for _ in completions]\n")
    words = ("check-reward", "rewards:reward", *ONCE)
    shown = command(1, *words, "--show", "pair-sum-wrong-2").out
    for line in (
        "pair-sum-wrong-2: a wrong program in python", "problem sum: stdio", "2 | print(a - b)", "the sandbox says WA",
        "call 1 of rewards:reward (trl): returned 1.0", "high: false accept, a wrong program got full reward",
    ):  # fmt: skip
        assert line in shown
    assert "nothing is wrong with that" in command(0, *words, "--show", "pair-sum-right-1").out
    assert "no sample has this id; near it: pair-sum-wrong-" in command(2, *words, "--show", "pair-sum-wron").err
    assert "leave out --json" in command(2, *words, "--show", "pair-sum-wrong-2", "--json").err


def test_what_an_async_function_keeps_belongs_to_one_loop(module: Path, command: Command) -> None:
    module.write_text(
        "import asyncio\nasync def reward(completions, **columns):\n    await asyncio.sleep(0)\n    return [0.0]\n"
    )
    report = json.loads(command(1, "check-reward", "rewards:reward", *ONCE, "--json").out)
    assert (report["style"], report["crashes"]) == ("trl", [])


class Tensor:
    """An array, as far as it is looked at."""

    def __init__(self, value: object) -> None:
        self.value = value

    def tolist(self) -> object:
        return self.value


RETURNED = [
    ("plain", True, 1.0), ("plain", None, None), ("plain", Tensor(0.5), 0.5),
    ("trl", [1], 1.0), ("trl", (0.5,), 0.5), ("trl", [None], None), ("trl", [float("nan")], None),
    ("trl", Tensor([0.5]), 0.5), ("trl", [Tensor(0.5)], 0.5), ("trl", [Tensor([0.5])], 0.5),
    ("verl", 0.5, 0.5), ("verl", {"score": 0.5, "acc": 1}, 0.5), ("verl", {"score": None}, None),
]  # fmt: skip
NO_REWARD = [
    ("plain", "1"), ("plain", [1, 2]), ("trl", 1.0), ("trl", []), ("trl", [1, 2]), ("trl", ["1"]), ("verl", {"acc": 1}),
]  # fmt: skip
ROW = {"data_source": "x", "reward_model": {"ground_truth": "y"}}


def called(style: str, returned: object) -> object:
    return STYLES[style].call(lambda *_, **__: returned, Answered(ROW, "ask", "answer"))


@pytest.mark.parametrize(("style", "returned", "reward"), RETURNED)
def test_what_a_function_returns_is_read_as_its_trainer_reads_it(
    style: str, returned: object, reward: float | None
) -> None:
    assert called(style, returned) == reward


@pytest.mark.parametrize(("style", "returned"), NO_REWARD)
def test_what_is_no_reward_in_its_style_is_told_as_what_it_returned(style: str, returned: object) -> None:
    with pytest.raises(BadReward, match=r"^returned "):
        called(style, returned)


@pytest.mark.parametrize("missing", ["data_source", "reward_model"])
def test_a_row_without_what_verl_hands_over_is_told_by_the_column(missing: str) -> None:
    row = {name: value for name, value in ROW.items() if name != missing}
    with pytest.raises(MissingColumn, match=missing):
        STYLES["verl"].call(print, Answered(row, "ask", "answer"))
