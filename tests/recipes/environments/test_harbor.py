"""Harbor task directories: what the policy does in the shell, and what the tests make of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from chats import Letters, Voice
from environment_runs import episodes_of, made_task, rewards
from harbor_tasks import TOML, harbor, of
from small_root import make_small_root

from recipes.environments.scored import EnvironmentFault, score_of


def says(*words: str) -> Voice:
    return Voice(lambda request: (words[min(request.turn - 1, len(words) - 1)], "stop"))


def run(command: str) -> str:
    return f"I try.\n```bash\n{command}\n```\n"


@pytest.mark.promise("environments")
def test_a_policy_that_does_what_it_is_asked_earns_what_the_tests_say(tmp_path) -> None:
    cfg = of(harbor(tmp_path / "hello", given="hello"))
    task, made = episodes_of(cfg, says(run("ls; cat given; ls /tests"), run("cp given out.txt"), "Done."))
    assert (made[0].failure, made[0].turns, rewards(task, made)) == ("", 3, [1.0])
    assert made[0].text.startswith("Done.\n")
    heard = Letters().decode(made[0].token_ids)
    assert "hello" in heard
    assert "secret" not in heard


def test_a_command_is_the_first_closed_block_of_a_shell_and_what_stands_between_others_is_none(tmp_path) -> None:
    said = "```python\nprint()\n```\ntouch wrong\n```text\n-\n```\n~~~SH\necho '```' | cp given out.txt\n~~~\n"
    cfg = of(harbor(tmp_path / "hello", given="hello"))
    task, made = episodes_of(cfg, says(said, run("test -e wrong && rm out.txt"), "Done.\n```bash\nrm out.txt"))
    assert (made[0].failure, made[0].turns, rewards(task, made)) == ("", 3, [1.0])


@pytest.mark.promise("environments")
def test_one_that_does_not_earns_less_and_no_reward_of_its_own_making_counts(tmp_path) -> None:
    forged = "mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; echo 'exit 0' > /tests/test.sh"
    task, made = episodes_of(of(harbor(tmp_path / "hello")), says(run(forged), "Done."))
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
    task, made = episodes_of(of(harbor(tmp_path / "hello", toml=toml)), says(run(trick), "Done."))
    assert made[0].failure == ""
    (reward,) = rewards(task, made)
    assert reward is not None
    assert reward <= 0.25


def test_a_closed_app_hides_nothing_from_tests_that_want_something_gone(tmp_path) -> None:
    test = "[ ! -e /app/secret ]; echo $((1 - $?)) > /logs/verifier/reward.txt"
    folder = harbor(tmp_path / "hello", test=test, secret="s")
    task, made = episodes_of(of(folder), says(run("chmod 000 /app"), "Done."))
    assert (made[0].failure, rewards(task, made)) == ("", [0.0])


@pytest.mark.promise("environments")
def test_tests_without_a_reward_are_a_fault_and_mask_the_sample(tmp_path) -> None:
    folder = harbor(tmp_path / "hello", test="echo the checker broke >&2; exit 3")
    task, made = episodes_of(of(folder), says("Done."))
    assert made[0].failure == "harbor: hello: tests/test.sh left no reward (exit 3): the checker broke"
    assert rewards(task, made) == [None]


def test_what_the_policy_left_that_keeps_the_tests_from_ending_earns_nothing(tmp_path) -> None:
    folder = harbor(tmp_path / "hello", test="bash /app/out.txt", toml=TOML.replace("20.0", "1.0"))
    task, made = episodes_of(of(folder), says(run("echo sleep 900 > out.txt"), "Done."))
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
    cfg = of(folder, readable=[packages])
    for given, paid in ((command, 0.25), (f"{command}; cd /app; echo hello > out.txt", 1.0)):
        task, made = episodes_of(cfg, says(run(given), "Done."))
        assert (made[0].failure, rewards(task, made)) == ("", [paid])


@pytest.mark.parametrize("place", ["/tmp/out.txt", "~/out.txt", "$HOME/out.txt", "/dev/shm/out.txt"])
def test_a_file_outside_of_app_that_the_instruction_names_stays_for_the_tests(tmp_path: Path, place: str) -> None:
    test = "grep -q hello ~/out.txt && [ ! -e ~/other ] && reward=1; echo ${reward:-0} > /logs/verifier/reward.txt"
    folder = harbor(tmp_path / "hello", test=test)
    (folder / "instruction.md").write_text(f"Write hello into `{place}`.")
    task, made = episodes_of(of(folder), says(run(f"echo hello > {place}; echo > ~/other"), "Done."))
    assert (made[0].failure, rewards(task, made)) == ("", [1.0])


def paid(folder: Path, *words: str, **options: Any) -> float | None:
    """The reward of a policy that says this; no fault."""
    task, made = episodes_of(of(folder, **options), says(*words))
    assert made[0].failure == ""
    return rewards(task, made)[0]


def passes(*checks: str) -> str:
    """Tests that pay where all of these hold."""
    return "set -x\n" + " && ".join(checks) + " && reward=1; echo ${reward:-0} > /logs/verifier/reward.txt"


def test_commands_and_tests_run_in_the_working_directory_with_its_variables(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("IS_SET", "from outside")
    toml = """[environment]
workdir = "/work space/src"
env = { A = "${IS_SET}", B = "${NOT_SET:-x y}", C = "${IS_SET} inside" }
[verifier]
env = { B = "own", D = "${IS_SET:-other}" }
"""
    test = passes(
        '[ "$PWD" = "/work space/src" ]',
        '[ "$A+$B+$C+$D" = "from outside+own+\\${IS_SET} inside+from outside" ]',
        "grep -qxF 'from outside.x y.${IS_SET} inside' out",
        "[ -f given ]",
    )
    folder = harbor(tmp_path / "hello", toml=toml, test=test, given="x")
    task, made = episodes_of(of(folder), says(run('echo "$A.$B.$C" > out'), "Done."))
    assert (made[0].failure, rewards(task, made)) == ("", [1.0])
    assert "in the directory /work space/src," in Letters().decode(made[0].request.prompt.token_ids)


def test_a_healthcheck_that_fails_is_a_fault_before_the_first_turn(tmp_path) -> None:
    toml = '[environment.healthcheck]\ncommand = "cat given; test -f other"'
    _, made = episodes_of(of(harbor(tmp_path / "hello", toml=toml, given="is here")), says("Done."))
    assert made[0].failure == "harbor: hello: its healthcheck failed (exit 1): is here"
    assert made[0].turns == 0


def test_the_policy_has_its_seconds_for_commands_and_then_the_tests_begin(tmp_path) -> None:
    folder = harbor(tmp_path / "hello", toml="[agent]\ntimeout_sec = 1", test=passes("[ -f /app/begun ]"))
    task, made = episodes_of(of(folder), says(run("touch begun; sleep 900"), run("rm begun")))
    assert (made[0].turns, rewards(task, made)) == (1, [1.0])


def test_what_the_policy_publishes_stays_and_commands_collect_beside_it(tmp_path) -> None:
    toml = '[[verifier.collect]]\ncommand = "wc -c < out.txt > /logs/artifacts/size; false"'
    test = passes(
        "[ $(cat /logs/artifacts/size) = 6 ]", "[ -f /logs/artifacts/mine ]", "[ ! -e /logs/verifier/forged ]"
    )
    folder = harbor(tmp_path / "hello", toml=toml, test=test)
    said = run("echo hello > out.txt; touch /logs/artifacts/mine /logs/verifier/forged ~/.artifacts")
    assert paid(folder, said, "Done.") == 1.0


def test_programs_of_the_task_can_be_run(tmp_path) -> None:
    folder = harbor(tmp_path / "hello", test=passes("/tests/secret", "/app/given"), given="#!/bin/sh\ntrue")
    (folder / "tests" / "secret").write_text("#!/bin/sh\ntrue")
    for name in ("tests/secret", "environment/given"):
        (folder / name).chmod(0o755)
    assert paid(folder, "Done.") == 1.0


APART = ('[verifier]\nenvironment_mode = "separate"', '[verifier.environment]\nworkdir = "/grade"\nenv = { W = "1" }')


@pytest.mark.promise("environments")
@pytest.mark.parametrize("toml", APART)
def test_tests_with_a_place_of_their_own_get_the_artifacts_and_nothing_else(tmp_path, toml: str) -> None:
    checks = ["[ -x /app/bin/made ]", "/app/bin/made", "[ ! -e /app/bin/old ]", "[ ! -e /app/other ]", "[ ! -e ~/x ]",
              "[ ! -e /app/link ]", "[ $(cat /tmp/note) = n ]", "[ $(cat given) = mine ]"]  # fmt: skip
    checks += ['[ "$PWD$W" = /grade1 ]'] if "grade" in toml else []
    toml = 'artifacts = ["bin", { source = "/app/link" }, "/tmp/note", "missing"]\n' + toml
    folder = harbor(tmp_path / "hello", toml=toml, test=passes(*checks), given="mine")
    (folder / "environment" / "bin").mkdir()
    (folder / "environment" / "bin" / "old").write_text("x")
    said = "echo theirs > given; touch other ~/x; rm bin/old; printf '#!/bin/sh\ntrue' > bin/made; chmod +x bin/made"
    assert paid(folder, run(f"{said}; ln -s /etc/passwd link; echo n > /tmp/note"), "Done.") == 1.0
    assert paid(folder, "Done.") == 0.0


def test_no_artifact_is_a_reward_or_breaks_the_place_of_the_tests(tmp_path) -> None:
    toml = 'artifacts = ["/logs", "/app"]\n[verifier.environment.healthcheck]\ncommand = "cat given/x || cat given"'
    folder = harbor(tmp_path / "hello", toml=toml, test="exit 1", given="x")
    said = run("for n in txt json; do echo 1 > /logs/verifier/reward.$n; done; rm given; mkdir given; touch given/x")
    _, made = episodes_of(of(folder), says(said, "Done."))
    assert made[0].failure == "harbor: hello: tests/test.sh left no reward (exit 1): "
    (folder / "tests" / "test.sh").write_text(passes("[ -d given ]", "[ -f given/x ]"))
    assert paid(folder, said, "Done.") == 1.0


def test_tests_are_in_whatever_their_first_line_names(tmp_path) -> None:
    test = "#!/usr/bin/env python3\nopen('/logs/verifier/reward.json', 'w').write('{\"reward\": 1}')"
    assert paid(harbor(tmp_path / "hello", test=test), "Done.") == 1.0


def test_what_no_shell_can_be_given_is_told_to_the_policy(tmp_path) -> None:
    folder = harbor(tmp_path / "hello", given="hello")
    task, made = episodes_of(of(folder), says(run("touch a\0b"), run("cp given out.txt"), "Done."))
    assert (made[0].failure, rewards(task, made)) == ("", [1.0])
    assert "and no NUL" in Letters().decode(made[0].token_ids)


def test_a_task_that_has_changed_since_the_start_is_a_fault(tmp_path) -> None:
    task = made_task(of(folder := harbor(tmp_path / "hello")))
    (prompt,) = task.prompts(Letters(), "train")
    (folder / "task.toml").write_text("[agent]\nuser = 1")
    with pytest.raises(EnvironmentFault, match=r"harbor: hello: agent.user is not supported: .*task.toml: 1"):
        asyncio.run(task.rollout(prompt, None, None))


def test_tests_with_an_image_of_their_own_are_those_of_the_image(tmp_path) -> None:
    folder = harbor(tmp_path / "hello", toml='artifacts = ["out.txt"]\n[verifier.environment]\ndocker_image = "x"')
    (refused,) = made_task(of(folder)).prompts(Letters(), "train")
    assert (refused.reason, "hello.verifier" in refused.detail) == ("its tests need an image", True)
    root = tmp_path / "roots" / "hello.verifier"
    (root / "tests").mkdir(parents=True)
    (root / "tests" / "test.sh").write_text(passes("[ $(cat /app/out.txt) = hello ]", "[ ! -e /tests/secret ]"))
    make_small_root(root, "bash", "sh", "cat", "mkdir")
    assert paid(folder, run("echo hello > out.txt"), "Done.", roots=str(tmp_path / "roots")) == 1.0


def test_an_image_that_was_extracted_is_seen_and_its_app_is_the_policys_own(tmp_path) -> None:
    folder = harbor(tmp_path / "tasks" / "hello", Dockerfile="FROM x")
    root = tmp_path / "roots" / "hello"
    (root / "app").mkdir(parents=True)
    (root / "app" / "given").write_text("hello")
    make_small_root(root, "bash", "sh", "cat", "cp", "ls", "mkdir", "rm")
    cfg = of(folder, roots=str(tmp_path / "roots"))
    task, made = episodes_of(cfg, says(run("cp given out.txt; echo x >> given"), "Done."))
    assert (made[0].failure, rewards(task, made)) == ("", [1.0])
    assert (root / "app" / "given").read_text() == "hello"


def test_a_reward_out_of_the_range_is_a_fault_by_name_unless_the_options_name_another_range(tmp_path) -> None:
    folder = harbor(tmp_path / "hello", test="mkdir -p /logs/verifier; echo -2 > /logs/verifier/reward.txt")
    _, made = episodes_of(of(folder), says("Done."))
    what = r"'-2\n', no reward from 0 to 1 (data.options.reward_least, reward_most)"
    assert made[0].failure == f"harbor: hello: tests/test.sh left {what} (exit 0): "
    task, made = episodes_of(of(folder, reward_least=-3.0), says("Done."))
    assert rewards(task, made) == [-2.0]
