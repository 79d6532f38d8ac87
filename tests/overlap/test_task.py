"""Tasks by name, and prompts in the model's own chat format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from overlap import core
from overlap.config.fields import Config
from overlap.core import Prompt
from overlap.core.errors import ConfigError, DataError
from overlap.task import Task, chat_prompt, load_task


class Characters:
    """A tokenizer of single characters, with a begin token 0 and, if asked, a chat template."""

    def __init__(self, template: str | None) -> None:
        self.chat_template = template

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [0] * add_special_tokens + [ord(c) for c in text]}

    def apply_chat_template(self, messages: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool) -> str:
        assert self.chat_template
        assert not tokenize
        assert add_generation_prompt
        return "".join(f"<{m['role'][0]}>{m['content']}" for m in messages) + "<a>"


def text_of(prompt: Prompt) -> str:
    return "".join(map(chr, prompt.token_ids))


def test_a_prompt_is_the_template_up_to_the_assistants_turn_and_then_the_prefill() -> None:
    prompt = chat_prompt(Characters("yes"), "p", "ask", system="be brief", prefill="```", data=[1])
    assert text_of(prompt) == "<s>be brief<u>ask<a>```"
    assert (prompt.id, prompt.prefill, prompt.data) == ("p", "```", [1])


def test_a_template_that_refuses_the_messages_is_told_in_one_line_with_the_policy() -> None:
    class Refusing(Characters):
        name_or_path = "google/some-model"

        def apply_chat_template(self, *_: Any, **__: Any) -> str:
            raise RuntimeError("System role\nnot supported")

    with pytest.raises(
        ConfigError, match=r"model.policy='google/some-model'.* system and user .*role not supp"
    ) as caught:
        chat_prompt(Refusing("yes"), "p", "ask", system="be brief")
    assert "\n" not in str(caught.value)


def test_a_real_tokenizer_agrees(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tiny_policy import make_tiny_policy
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(make_tiny_policy(tmp_path / "tiny"))
    prompt = chat_prompt(tokenizer, "p", "ask", prefill="def f")
    assert tokenizer.decode(prompt.token_ids) == "<|im_start|>user\nask<|im_end|>\n<|im_start|>assistant\ndef f"


class Plain(Task):
    def prompts(self, tokenizer: Any, split: str) -> list[Prompt]:
        return []

    def reward(self, prompt: Prompt, answer: str, judgement: Any) -> float:
        return 1.0


class Configured(Plain):
    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg

    @classmethod
    def from_config(cls, cfg: Config) -> Configured:
        return cls(cfg)


class Needy(Plain):
    def __init__(self, table: dict[str, int]) -> None:
        self.table = table


class Refusing(Plain):
    @classmethod
    def from_config(cls, cfg: Config) -> Refusing:
        raise DataError("problems.jsonl:3", "{", "is not JSON")


class Half:
    def prompts(self, tokenizer: Any, split: str) -> list[Prompt]:
        return []


def test_a_task_needs_no_sandbox_unless_it_says_so() -> None:
    assert isinstance(Plain(), core.Task)
    assert Plain().program(Prompt("p", ()), "answer") is None


def test_a_task_is_made_by_its_name_and_given_the_configuration() -> None:
    cfg = Config()
    assert type(load_task(f"{__name__}:Plain", cfg)) is Plain
    task = load_task(f"{__name__}:Configured", cfg)
    assert isinstance(task, Configured)
    assert task.cfg is cfg


def test_a_module_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from overlap.task import Task\nclass Mine(Task):\n    prompts = reward = lambda self, *args: None\n"
    (tmp_path / "my_own_task.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert type(load_task("my_own_task:Mine")).__name__ == "Mine"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "must be"),
        ("recipes.code_rl.task", "must be"),
        (":Task", "must be"),
        ("no_such_module:Task", "No module named 'no_such_module'"),
        (f"{__name__}:plain", "did you mean Plain"),
        (f"{__name__}:Missing", "has no class Missing"),
        (f"{__name__}:Needy", "cannot be made without its argument table"),
        (f"{__name__}:Task", "cannot be made"),
        (f"{__name__}:Half", "has no program"),
        ("broken_task:Task", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_name_that_leads_nowhere_is_a_config_error(
    path: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_task.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"data\.task=") as caught:
        load_task(path)
    assert says in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_tasks_own_config_error_is_passed_on() -> None:
    with pytest.raises(DataError, match=r"problems\.jsonl:3"):
        load_task(f"{__name__}:Refusing", Config())
