"""Reward functions of other trainers as tasks: found, called as their trainers call them, and told of by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import foreign_rewards as foreign
import pytest
from places import SUPPORT
from verifying import opened, score, trajectory

import overlap
from overlap import cli
from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import LeftOut, Prompt
from overlap.core.errors import ConfigError, VerifierError
from overlap.rewards import RewardOptions, RewardTask, reward_overrides
from overlap.task import check_task, load_task

FILE = str(SUPPORT / "foreign_rewards.py")
TALK = [{"role": "user", "content": "say sky"}]
ROW = {
    "id": "sky", "prompt": TALK, "answer": "blue", "data_source": "words",
    "reward_model": {"style": "rule", "ground_truth": "blue"}, "extra_info": {"index": 7},
}  # fmt: skip


class Characters:
    """A tokenizer of single characters with a chat template."""

    chat_template = "yes"

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [0] * add_special_tokens + [ord(c) for c in text]}

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "".join(f"<{m['role'][0]}>{m['content']}" for m in messages) + "<a>"


def prompts(task: RewardTask, split: str = "train") -> list[Any]:
    return list(task.prompts(Characters(), split))


def made(name: str, row: dict[str, Any] = ROW, **options: Any) -> tuple[RewardTask, Prompt]:
    """A task of one row that is trained on, and its prompt."""
    foreign.seen.clear()
    task = overlap.reward_task(getattr(foreign, name), [row], [row], **options)
    (prompt,) = prompts(task)
    assert isinstance(prompt, Prompt)
    return task, prompt


STYLES = [
    ("trl_words", "trl", ROW, 1.0), ("trl_later", "trl", ROW, 1.0), ("trl_object", "trl", ROW, 0.5),
    ("compute_score", "verl", ROW, 1.0), ("compute_score_later", "verl", ROW, 1.0),
    ("plain_words", "plain", ROW, 1.0),
]  # fmt: skip


@pytest.mark.promise("rewards-in")
@pytest.mark.parametrize(("name", "style", "row", "paid"), STYLES, ids=[name for name, *_ in STYLES])
def test_a_function_is_found_by_its_parameters_and_pays_what_it_pays_its_trainer(
    name: str, style: str, row: dict[str, Any], paid: float
) -> None:
    task, prompt = made(name, row)
    assert task.style == style
    assert check_task(task, "task", Config()) is task
    assert task.reward(prompt, "it is blue", None) == paid
    assert task.reward(prompt, "it is red", None) == 0.0


def test_trl_gets_lists_messages_the_columns_and_the_sampled_tokens() -> None:
    task, prompt = made("trl_later")
    task.reward_of_tokens(prompt, "it is blue", [5, 6])
    (call,) = foreign.seen
    assert call["completions"] == [[{"role": "assistant", "content": "it is blue"}]]
    assert (call["prompts"], call["answer"], call["completion_ids"]) == ([TALK], ["blue"], [[5, 6]])
    assert (call["data_source"], call["extra_info"]) == (["words"], [{"index": 7}])
    assert call["trainer_state"] is None
    call["log_metric"]("words", 1.0)
    assert "prompt" not in call


def test_trl_gets_texts_where_the_prompt_is_one() -> None:
    task, prompt = made("trl_words", {**ROW, "prompt": "say sky: "})
    assert list(prompt.token_ids)[1:] == [ord(c) for c in "say sky: "]
    assert task.reward(prompt, "blue", None) == 1.0
    assert foreign.seen[0]["completions"] == ["blue"]


def test_a_text_becomes_the_users_turn_where_that_is_asked_for() -> None:
    _, prompt = made("trl_words", {**ROW, "prompt": "say sky"}, text_prompt="user")
    assert "".join(map(chr, prompt.token_ids)) == "<u>say sky<a>"


def test_verl_gets_its_extra_info_with_what_the_manager_adds() -> None:
    task, prompt = made("compute_score")
    task.reward(prompt, "blue", None)
    assert foreign.seen == [
        {"data_source": "words", "extra_info": {"index": 7, "num_turns": None, "rollout_reward_scores": {}}}
    ]


def test_the_plain_style_gets_the_program_of_the_answer() -> None:
    task, prompt = made("plain_words")
    assert task.reward(prompt, "red\n```python\nblue\n```\n", None) == 1.0
    assert task.reward(prompt, "blue\n```python\nred\n```\n", None) == 0.0


@pytest.mark.promise("rewards-in")
def test_none_masks_the_sample_and_is_never_0() -> None:
    task, prompt = made("trl_words", {**ROW, "answer": "?"})
    asked = replace(trajectory("x").request, prompt=prompt)
    (scored,) = score(task, replace(trajectory("x"), request=asked))
    assert (scored.reward, scored.failure) == (None, "masked by the task")


# --- what cannot be used is one line ----------------------------------------------------------------------------------


def test_a_style_that_does_not_fit_names_what_is_wrong_and_the_form() -> None:
    with pytest.raises(ConfigError, match=r"style of verl \(.*'completions'\); write `def compute_score\(data_source"):
        overlap.reward_task(foreign.trl_words, [ROW], style="verl")
    with pytest.raises(ConfigError, match=r"reward_task\.style='deepspeed': use one of auto, plain, trl"):
        overlap.reward_task(foreign.trl_words, [ROW], style="deepspeed")


def test_a_column_that_the_function_needs_and_the_data_lacks_is_one_line_with_its_place() -> None:
    task = overlap.reward_task(foreign.trl_words, [{"prompt": "x", "solution": "y"}], [{"prompt": "x"}])
    with pytest.raises(
        ConfigError, match=r"trl_words \(.*rewards.py:\d+\).* row 1, prompt, solution: missing .*'answer'"
    ):
        prompts(task)


def test_rows_without_what_the_style_hands_over_are_left_out_and_counted() -> None:
    rows = [ROW, {"id": 2, "prompt": "x"}, {"id": 3}, {**ROW, "id": "sky"}, {"id": 5, "prompt": [1]}, 6]
    task = overlap.reward_task(foreign.compute_score, rows, [ROW])  # type: ignore[arg-type]
    found = prompts(task)
    assert [entry.reason for entry in found if isinstance(entry, LeftOut)] == [
        "malformed", "malformed", "id used twice", "malformed", "malformed",
    ]  # fmt: skip
    assert "has no reward_model.ground_truth, which the style verl hands over" in str(found[1])


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("unlucky", r"raised KeyError: 'no such word' \(.*foreign_rewards.py:\d+\)"),
        ("wordy", r"returned 'yes' of type str"),
        ("forgetful", r"returned \[\]: return a list with a number, or None, per completion"),
    ],
)
def test_what_a_function_does_wrong_names_it_and_the_sample(name: str, what: str) -> None:
    task = RewardTask(f"{FILE}:{name}", [ROW], [ROW], overlap.reward_task(foreign.trl_words, [ROW])._given)
    (prompt,) = prompts(task)
    asked = replace(trajectory("x").request, prompt=prompt)
    with pytest.raises(VerifierError, match=rf"foreign_rewards.py:{name} {what}.* for sample g0s0 of prompt 'sky'"):
        score(task, replace(trajectory("x"), request=asked))


async def test_a_function_that_hangs_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import signal\ndef slow(prompts, completions, **kwargs):\n    signal.pause()\n")
    task = RewardTask(f"{tmp_path / 'slow.py'}:slow", [ROW], [ROW])
    (prompt,) = prompts(task)
    asked = replace(trajectory("x").request, prompt=prompt)
    async with opened(task, cpu_s=0.1) as verifier:
        with pytest.raises(VerifierError, match=r"slow.py:slow took more than .* in .*slow.py:3, .* for sample g0s0"):
            await verifier.score(replace(trajectory("x"), request=asked))


# --- by configuration -------------------------------------------------------------------------------------------------


def test_a_configuration_alone_makes_the_task(tmp_path: Path) -> None:
    rows = [{**ROW, "id": number} for number in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = [*reward_overrides(f"{FILE}:trl_words", "trl"), f"data.train={tmp_path / 'rows.jsonl'}"]
    cfg = load_config(None, given)
    again = load_config(cfg.to_dict())
    task = load_task(again.data.task, again)
    assert isinstance(task, RewardTask)
    assert (task.style, task.called) == ("trl", {"reward": f"{FILE}:trl_words"})
    train, heldout = prompts(task), prompts(task, "heldout")
    assert len(train) + len(heldout) == 40
    assert 0 < len(heldout) < 12
    assert not {prompt.id for prompt in train} & {prompt.id for prompt in heldout}


def test_the_split_of_a_row_holds(tmp_path: Path) -> None:
    rows = [
        {**ROW, "id": id, "split": split} for id, split in zip("abcd", ("train", "test", "heldout", None), strict=True)
    ]
    task = RewardTask(f"{FILE}:trl_words", rows, given=RewardOptions(style="trl"))
    assert [[prompt.id for prompt in prompts(task, split)] for split in ("train", "heldout")] == [
        ["a", "d"],
        ["b", "c"],
    ]
    task = RewardTask(f"{FILE}:trl_words", rows, rows[1:2], given=RewardOptions(style="trl"))
    found = task.prompts(Characters(), "train")
    assert [p.id if isinstance(p, Prompt) else p.reason for p in found] == ["a", *["heldout by its own split"] * 2, "d"]
    wrong = RewardTask(f"{FILE}:trl_words", [{**ROW, "split": "dev"}], given=RewardOptions(style="trl"))
    with pytest.raises(ConfigError, match="row 1': its split is 'dev'"):
        prompts(wrong)


def test_the_rows_may_be_those_that_a_split_file_names(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({**ROW, "id": id}) + "\n" for id in "abcd"))
    chosen = [("c", "train"), ("a", "heldout"), ("b", "dropped"), ("d", "train"), ("x", "train"), ("c", "train")]
    split = tmp_path / "split.jsonl"
    split.write_text("".join(json.dumps({"id": i, "split": s, "source": "rows.jsonl"}) + "\n" for i, s in chosen))
    task = RewardTask(f"{FILE}:trl_words", str(split), given=RewardOptions(style="trl"))
    found = task.prompts(Characters(), "train")
    assert [prompt.id for prompt in found if isinstance(prompt, Prompt)] == ["c", "d"]
    why = [row.detail for row in found if isinstance(row, LeftOut)]
    assert [("no usable problem" in line, "occurs twice" in line) for line in why] == [(True, False), (False, True)]
    assert [prompt.id for prompt in prompts(task, "heldout")] == ["a"]


@pytest.mark.parametrize("command", [["filter", "--out", "x.jsonl"], ["rollout", "--answers", "runs/x"], ["train"]])
def test_every_command_that_gives_rewards_takes_a_reward_function(command: list[str]) -> None:
    args = cli._parse([*command, "--reward", "a:b", "--style", "trl", "data.train=x"])
    wanted = [*reward_overrides("a:b", "trl"), "data.train=x"]
    assert args.overrides == wanted


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ([], "data.options.reward='': name a reward function"),
        (["data.options.reward=json:dumps"], "data.train='': name the rows"),
        (["data.options.reward=no.such:one", "data.train=x"], "importing no.such raised"),
        (["data.options.reward=x.py:one", "data.train=x"], "data.options.reward='x.py:one': there is no file /.*x.py"),
        (["data.options.reward=json:dumqs", "data.train=x"], "did you mean dump"),
        (
            ["data.options.rewards=json:dumps"],
            "data.options.rewards='json:dumps': is no option of RewardTask; did you mean reward?",
        ),
    ],
)
def test_a_configuration_that_names_no_function_or_no_rows_is_one_line(overrides: list[str], line: str) -> None:
    cfg = load_config(None, ["data.task=overlap.rewards:RewardTask", *overrides])
    with pytest.raises(ConfigError, match=line):
        load_task(cfg.data.task, cfg)


def test_a_style_without_a_reward_function_names_the_flag() -> None:
    cfg = load_config(None, ["data.options.style=trl"])
    with pytest.raises(ConfigError, match=r"is no option of CodeTask; .*; it belongs to --reward module:function"):
        load_task(cfg.data.task, cfg)


# --- in a run ---------------------------------------------------------------------------------------------------------


def test_the_styles_of_the_command_of_the_configuration_and_of_the_sandbox_are_the_same() -> None:
    from overlap.commands.parsers import STYLES as offered
    from sandbox.rewards.styles import STYLES as known

    assert ("auto", *offered) == get_args(get_type_hints(RewardOptions)["style"])
    assert set(offered) == set(known)
