"""Harbor task directories: what the policy does in the shell, and what the tests make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chats import Letters, Voice
from environment_runs import config, episodes_of, made_task, rewards
from small_root import make_small_root

from overlap.core import LeftOut
from overlap.environments.harbor_files import read_reward
from overlap.environments.scored import score_of
from overlap.errors import ConfigError

TOML = """version = "1.0"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 20.0
env = { WANTED = "hello" }
[environment]
memory_mb = 512
"""
TEST = """#!/bin/bash
mkdir -p /logs/verifier
if [ "$(cat /app/out.txt)" = "$WANTED" ] && [ "$(cat /tests/secret)" = s ]; then echo 1 > /logs/verifier/reward.txt
else echo 0.25 > /logs/verifier/reward.txt; fi
"""


def harbor(folder: Path, *, test: str = TEST, toml: str = TOML, **environment: str) -> Path:
    for name in ("environment", "tests"):
        (folder / name).mkdir(parents=True)
    (folder / "instruction.md").write_text("Write hello into out.txt.")
    (folder / "task.toml").write_text(toml)
    (folder / "tests" / "test.sh").write_text(test)
    (folder / "tests" / "secret").write_text("s")
    for name, text in environment.items():
        (folder / "environment" / name).write_text(text)
    return folder


def says(*words: str) -> Voice:
    return Voice(lambda request: (words[min(request.turn - 1, len(words) - 1)], "stop"))


def run(command: str) -> str:
    return f"I try.\n```bash\n{command}\n```\n"


@pytest.mark.promise("environments")
def test_a_policy_that_does_what_it_is_asked_earns_what_the_tests_say(tmp_path) -> None:
    cfg = config(f"harbor:{harbor(tmp_path / 'hello', given='hello')}", {})
    task, made = episodes_of(cfg, says(run("ls; cat given; ls /tests"), run("cp given out.txt"), "Done."))
    assert (made[0].failure, made[0].turns, rewards(task, made)) == ("", 3, [1.0])
    assert made[0].text.startswith("Done.\n")
    heard = Letters().decode(made[0].token_ids)
    assert "hello" in heard
    assert "secret" not in heard


def test_a_command_is_the_first_closed_block_of_a_shell_and_what_stands_between_others_is_none(tmp_path) -> None:
    said = "```python\nprint()\n```\ntouch wrong\n```text\n-\n```\n~~~SH\necho '```' | cp given out.txt\n~~~\n"
    cfg = config(f"harbor:{harbor(tmp_path / 'hello', given='hello')}", {})
    task, made = episodes_of(cfg, says(said, run("test -e wrong && rm out.txt"), "Done.\n```bash\nrm out.txt"))
    assert (made[0].failure, made[0].turns, rewards(task, made)) == ("", 3, [1.0])


@pytest.mark.parametrize("heldout", [1, 2, -1])
def test_as_many_tasks_as_there_are_cannot_be_held_out(tmp_path, heldout) -> None:
    with pytest.raises(ConfigError, match="there are 1 tasks"):
        made_task(config(f"harbor:{harbor(tmp_path / 'hello')}", {"heldout": heldout}))


@pytest.mark.promise("environments")
def test_one_that_does_not_earns_less_and_no_reward_of_its_own_making_counts(tmp_path) -> None:
    forged = "mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; echo 'exit 0' > /tests/test.sh"
    task, made = episodes_of(config(f"harbor:{harbor(tmp_path / 'hello')}", {}), says(run(forged), "Done."))
    assert (made[0].failure, rewards(task, made)) == ("", [0.25])


@pytest.mark.parametrize(
    "trick",
    [
        "mkdir -p /tests/x/y /logs/z; touch /tests/x/y/z; chmod 000 /tests/x/y /tests/x /tests",
        "head -c 1G /dev/zero > fill; true",
        "cd /box/work; rm -rf app; ln -s /etc app",
        "ln -s /box/work/app /box/work/tests; mkfifo /box/work/logs",
    ],
)
def test_what_stands_in_the_way_of_the_tests_masks_nothing(tmp_path, trick: str) -> None:
    toml = TOML.replace("memory_mb", "storage_mb = 8\nmemory_mb")
    task, made = episodes_of(config(f"harbor:{harbor(tmp_path / 'hello', toml=toml)}", {}), says(run(trick), "Done."))
    assert made[0].failure == ""
    (reward,) = rewards(task, made)
    assert reward is not None
    assert reward <= 0.25


def test_a_closed_app_hides_nothing_from_tests_that_want_something_gone(tmp_path) -> None:
    test = "[ ! -e /app/secret ]; echo $((1 - $?)) > /logs/verifier/reward.txt"
    folder = harbor(tmp_path / "hello", test=test, secret="s")
    task, made = episodes_of(config(f"harbor:{folder}", {}), says(run("chmod 000 /app"), "Done."))
    assert (made[0].failure, rewards(task, made)) == ("", [0.0])


@pytest.mark.promise("environments")
def test_tests_without_a_reward_are_a_fault_and_mask_the_sample(tmp_path) -> None:
    folder = harbor(tmp_path / "hello", test="echo the checker broke >&2; exit 3")
    task, made = episodes_of(config(f"harbor:{folder}", {}), says("Done."))
    assert made[0].failure == "harbor: hello: tests/test.sh left no reward (exit 3): the checker broke"
    assert rewards(task, made) == [None]


def test_what_the_policy_left_that_keeps_the_tests_from_ending_earns_nothing(tmp_path) -> None:
    folder = harbor(tmp_path / "hello", test="bash /app/out.txt", toml=TOML.replace("20.0", "1.0"))
    task, made = episodes_of(config(f"harbor:{folder}", {}), says(run("echo sleep 900 > out.txt"), "Done."))
    assert (made[0].failure, rewards(task, made)) == ("", [0.0])
    assert score_of(made[0].text, made[0].request.prompt.data)["tests"] == "wall limit"


PYTEST = "cd /tests && python3 -m pytest -q test_it.py"
GREP = "grep -q hello /app/out.txt"
LEAVES = "echo 'import os; os._exit(0)' >"
SITE = "site=$(python3 -m site --user-site); mkdir -p $site; "
LOADED = {
    "a conftest above the tests": (f"{LEAVES} /tmp/conftest.py", PYTEST),
    "settings of pytest above the tests": ("printf '[pytest]\\naddopts = --collect-only' > /tmp/pytest.ini", PYTEST),
    "a conftest beside the tests": (f"mkdir -p /box/work/tests; {LEAVES} /tests/conftest.py", PYTEST),
    "another test file": ("mkdir -p /box/work/tests; echo 'def test(): pass' > /tests/test_it.py", PYTEST),
    "usercustomize": (f"{SITE}{LEAVES} $site/usercustomize.py", PYTEST),
    "sitecustomize": (f"{SITE}{LEAVES} $site/sitecustomize.py", PYTEST),
    "a pth file": (f"{SITE}{LEAVES} $site/x.pth", PYTEST),
    "a pth file behind a link": (f"{SITE}{LEAVES} $site/x.pth; mv ~/.local /app/x; ln -s app/x ~/.local", PYTEST),
    "files of pytest and of the interpreter in /app": (
        f"cd /app; for f in conftest sitecustomize usercustomize pytest json; do {LEAVES} $f.py; done; "
        "printf '[pytest]\\naddopts = --collect-only' > pytest.ini",
        "cd /app && python3 -P -m pytest -q /tests/test_it.py",
    ),
    "a variable of the shell": (f"export PYTHONSTARTUP=/app/x PYTEST_ADDOPTS=--collect-only; {LEAVES} /app/x", PYTEST),
    "a profile of the shell": ("echo exit 0 > ~/.bash_profile", f"bash -lc '{GREP}'"),
    "an installer's settings": (
        "mkdir -p ~/.local/bin; echo 'grep() { :; }' > ~/.local/bin/env",
        f". $HOME/.local/bin/env; {GREP}",
    ),
    "a program on the path": (
        "mkdir -p ~/.local/bin; printf '#!/bin/sh' > ~/.local/bin/grep; chmod +x ~/.local/bin/grep",
        f"PATH=$HOME/.local/bin:$PATH; {GREP}",
    ),
    "names that a shell may misread": (
        f"cd; mkdir -- -rf ..x '*' ' '; {LEAVES} conftest.py; mkdir -p y/z; chmod 000 y/z y",
        PYTEST,
    ),
}


@pytest.mark.parametrize(("command", "test"), LOADED.values(), ids=list(LOADED))
def test_what_the_policy_leaves_loads_no_code_into_the_tests(tmp_path: Path, command: str, test: str) -> None:
    folder = harbor(tmp_path / "hello", test=f"{test} && reward=1; echo ${{reward:-0.25}} > /logs/verifier/reward.txt")
    (folder / "tests" / "test_it.py").write_text("def test():\n    assert open('/app/out.txt').read() == 'hello\\n'\n")
    packages = str(Path(pytest.__file__).parents[1])
    (folder / "task.toml").write_text(
        TOML.replace('WANTED = "hello"', f'PYTHONPATH = "{packages}", PYTEST_DISABLE_PLUGIN_AUTOLOAD = "1"')
    )
    cfg = config(f"harbor:{folder}", {"readable": [packages]})
    for given, paid in ((command, 0.25), (f"{command}; cd /app; echo hello > out.txt", 1.0)):
        task, made = episodes_of(cfg, says(run(given), "Done."))
        assert (made[0].failure, rewards(task, made)) == ("", [paid])


@pytest.mark.parametrize("place", ["/tmp/out.txt", "~/out.txt", "$HOME/out.txt", "/dev/shm/out.txt"])
def test_a_file_outside_of_app_that_the_instruction_names_stays_for_the_tests(tmp_path: Path, place: str) -> None:
    test = "grep -q hello ~/out.txt && [ ! -e ~/other ] && reward=1; echo ${reward:-0} > /logs/verifier/reward.txt"
    folder = harbor(tmp_path / "hello", test=test)
    (folder / "instruction.md").write_text(f"Write hello into `{place}`.")
    task, made = episodes_of(
        config(f"harbor:{folder}", {}), says(run(f"echo hello > {place}; echo > ~/other"), "Done.")
    )
    assert (made[0].failure, rewards(task, made)) == ("", [1.0])


@pytest.mark.parametrize(
    ("environment", "toml", "reason"),
    [
        ({"Dockerfile": "FROM x"}, TOML, "it needs an image"),
        ({"docker-compose.yaml": "x"}, TOML, "it needs an image"),
        ({}, TOML + 'docker_image = "x"\n', "it needs an image"),
        ({}, TOML + "gpus = 1\n", "environment.gpus is not supported"),
        ({}, TOML + 'memory = "lots"\n', "environment.memory is no size"),
        ({}, TOML.replace("60.0", "-1"), "timeout_sec is no positive number"),
        ({}, "[", "a file of the task cannot be read"),
        ({}, '[[steps]]\nname = "a"\n', "several steps"),
    ],
)
def test_what_is_not_supported_is_left_out_and_said(tmp_path, environment: Any, toml: str, reason: str) -> None:
    toml = toml.replace("memory_mb = 512\n", "") if "memory =" in toml else toml
    harbor(tmp_path / "tasks" / "one", toml=toml, **environment)
    harbor(tmp_path / "tasks" / "two")
    first, second = made_task(config(f"harbor:{tmp_path}/tasks", {})).prompts(Letters(), "train")
    assert isinstance(first, LeftOut)
    assert first.reason.startswith(reason)
    assert second.id == "two"


def test_an_image_that_was_extracted_is_seen_and_its_app_is_the_policys_own(tmp_path) -> None:
    folder = harbor(tmp_path / "tasks" / "hello", Dockerfile="FROM x")
    root = tmp_path / "roots" / "hello"
    (root / "app").mkdir(parents=True)
    (root / "app" / "given").write_text("hello")
    make_small_root(root, "bash", "sh", "cat", "cp", "ls", "mkdir", "rm")
    cfg = config(f"harbor:{folder}", {"roots": str(tmp_path / "roots")})
    task, made = episodes_of(cfg, says(run("cp given out.txt; echo x >> given"), "Done."))
    assert (made[0].failure, rewards(task, made)) == ("", [1.0])
    assert (root / "app" / "given").read_text() == "hello"


def test_a_directory_without_tasks_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="there is no task"):
        made_task(config(f"harbor:{tmp_path}", {}))


@pytest.mark.parametrize(
    ("text", "mapping", "reward"),
    [
        (b"0.5\n", None, 0.5),
        (None, b'{"reward": 1}', 1.0),
        (None, b'{"a": 1, "b": 0}', 0.5),
        (b"", b"0.25", 0.25),
        (b"nan", None, None),
        (b"1e300", None, None),
        (b"-0.5", None, None),
        (b"1_0", None, None),
        (b"0_1", None, None),
        (b"2", None, None),
        (None, b'{"n_tests": 40}', None),
        (None, b'{"a": 2, "b": 0}', None),
        (None, b'{"reward": 2}', None),
        (b"x", None, None),
        (None, b"{}", None),
        (None, b'{"a": "x"}', None),
        (None, b"1" + b"0" * 400, None),
        (None, b'{"a": 1e308, "b": 1' + b"0" * 400 + b"}", None),
        (None, b"[" * 100_000, None),
        (None, None, None),
    ],
)
def test_a_reward_from_0_to_1_is_read_from_either_file(text: Any, mapping: Any, reward: Any) -> None:
    assert read_reward(text, mapping) == reward


def test_a_reward_out_of_the_range_is_a_fault_by_name_unless_the_options_name_another_range(tmp_path) -> None:
    folder = harbor(tmp_path / "hello", test="mkdir -p /logs/verifier; echo -2 > /logs/verifier/reward.txt")
    _, made = episodes_of(config(f"harbor:{folder}", {}), says("Done."))
    what = r"'-2\n', no reward from 0 to 1 (data.options.reward_least, reward_most)"
    assert made[0].failure == f"harbor: hello: tests/test.sh left {what} (exit 0): "
    task, made = episodes_of(config(f"harbor:{folder}", {"reward_least": -3.0}), says("Done."))
    assert rewards(task, made) == [-2.0]
