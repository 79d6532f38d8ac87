"""``episode.command`` is read before a run begins: what cannot be run is refused with the way out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from chats import Letters

from overlap.config.load import load_config
from overlap.core import Prompt
from overlap.core.errors import ConfigError
from overlap.run.agent_command import check_agent


class Bringing:
    """A task whose program finds these files."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def files(self, prompt: Prompt, text: str) -> Mapping[str, str]:
        return dict.fromkeys(self.names, text)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("my_agent.py", "plain.sh", "with blank.py"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / "agent.sh").write_text("#!/bin/sh\n")
    (tmp_path / "agent.sh").chmod(0o755)
    return tmp_path


def check(command: str, *names: str) -> None:
    prompt: Any = Prompt("p7", Letters()("ask")["input_ids"])
    check_agent(load_config(None, [f"episode.command={json.dumps(command)}"]), Bringing(*names), prompt, Letters())


def test_what_can_be_run_is_taken(here: Path) -> None:
    for command in (
        f"python {here / 'my_agent.py'}",
        f"{here / 'agent.sh'} --fast",
        f"LEVEL=3 python '{here / 'with blank.py'}' \"x y\"",
        "cd /tmp && exec python -m json.tool",
        "if true; then python -c 'pass'; fi",
        "$SHELL -c true",
        "python $HOME/agent.py",
        "(true)",
    ):
        check(command)
    check("python my_agent.py", "my_agent.py")
    check("./run.sh", "run.sh")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("python my_agent.py", r"runs in a directory of its own, where my_agent.py is not: write /\S+/my_agent.py$"),
        ("./agent.sh", r"where ./agent.sh is not: write /\S+/agent.sh$"),
        ("./missing.sh", "there is no program ./missing.sh that may be executed: name it by its whole path"),
        ("/no/such/agent", "there is no program /no/such/agent"),
        ("LEVEL=3 no-such-agent --fast", "there is no program no-such-agent that may be"),
        ("python 'my agent.py", r"a shell cannot read it \(.+\)"),
        ("python -c pass; (", r"a shell cannot read it \(.+\)"),
        ("  ", "it is blank"),
    ],
)
def test_what_cannot_be_run_is_refused_on_one_line(command: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^episode.command=.*{says}") as refused:
        check(command)
    assert "\n" not in refused.value.way_out


def test_a_program_that_may_not_be_executed_is_refused(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"plain.sh that may be executed: .* chmod \+x it"):
        check(str(here / "plain.sh"))


def test_files_that_cannot_be_made_are_told_with_the_prompt() -> None:
    class Failing(Bringing):
        def files(self, prompt: Prompt, text: str) -> Mapping[str, str]:
            raise KeyError("statement")

    cfg = load_config(None, ["episode.command=python my_agent.py"])
    with pytest.raises(ConfigError, match=r"data.task='.*Failing.files': raised KeyError: 'statement'"):
        check_agent(cfg, Failing(), Prompt("p7", Letters()("a")["input_ids"]), Letters())


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["episode.jail={processes: 3}"], r"episode.jail=.*: is for an agent program"),
        (
            ["episode.command=sh x", "episode.jail.readable=[nothing]"],
            r"episode.jail.readable='nothing'",
        ),
    ],
)
def test_an_isolation_that_cannot_be_is_refused(overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_agent(load_config(None, overrides), Bringing("x"), Prompt("p", ()), Letters())


def test_an_isolated_program_that_root_hides_from_others_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "agent.sh").write_text("true")
    (tmp_path / "agent.sh").chmod(0o600)
    cfg = load_config(None, [f"episode.command=sh {tmp_path}/agent.sh", "episode.jail={}"])
    if os.geteuid() != 0:
        pytest.skip("as an ordinary user, the program is the same user")
    with pytest.raises(ConfigError, match=r"agent.sh': an isolated program of root is another user.*chmod -R o\+rX"):
        check_agent(cfg, Bringing(), Prompt("p", ()), Letters())
    (tmp_path / "agent.sh").chmod(0o644)
    check_agent(cfg, Bringing(), Prompt("p", ()), Letters())
