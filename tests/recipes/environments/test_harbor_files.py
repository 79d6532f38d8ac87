"""Harbor task directories: what of them is taken, what is refused by name, and what a reward file says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from chats import Letters
from environment_runs import made_task
from harbor_tasks import harbor, of

from overlap.core import LeftOut
from overlap.core.errors import ConfigError
from recipes.environments.harbor_files import read_reward
from recipes.environments.harbor_schema import TaskToml

FIELDS = {
    "schema_version": ('schema_version = "1.4"', ""),
    "task": ('[task]\nname = "me/hello"', ""),
    "metadata": ("[metadata]\nanything = 1", ""),
    "solution": ('[solution]\nenv = { A = "b" }', ""),
    "source": ('source = "x"', ""),
    "steps": ('[[steps]]\nname = "a"', "steps is not supported"),
    "multi_step_reward_strategy": (
        'multi_step_reward_strategy = "mean"',
        "multi_step_reward_strategy is not supported",
    ),
    "artifacts": ('artifacts = ["/app/out.txt"]', ""),
    "artifacts.source": ('artifacts = [{ source = "out.txt" }]', ""),
    "artifacts.destination": ('artifacts = [{ source = "out.txt", destination = "x" }]', ""),
    "artifacts.exclude": ('artifacts = [{ source = "a", exclude = ["*.o"] }]', "artifacts.0.exclude is not supported"),
    "artifacts.service": ('artifacts = [{ source = "/a", service = "db" }]', "artifacts.0.service Input should be"),
    "agent.timeout_sec": ("[agent]\ntimeout_sec = 5", ""),
    "agent.user": ("[agent]\nuser = 0", "agent.user is not supported"),
    "agent.network_mode": ('[agent]\nnetwork_mode = "no-network"', ""),
    "agent.allowed_hosts": ('[agent]\nallowed_hosts = ["a.b"]', "agent.allowed_hosts asks for a network"),
    "verifier.timeout_sec": ("[verifier]\ntimeout_sec = 5", ""),
    "verifier.env": ('[verifier]\nenv = { A = "b" }', ""),
    "verifier.environment_mode": ('[verifier]\nenvironment_mode = "shared"', ""),
    "verifier.environment": ("[verifier.environment]\ncpus = 1", ""),
    "verifier.user": ('[verifier]\nuser = "root"', "verifier.user is not supported"),
    "verifier.network_mode": ('[verifier]\nnetwork_mode = "public"', "verifier.network_mode asks for a network"),
    "verifier.allowed_hosts": ('[verifier]\nallowed_hosts = ["a.b"]', "verifier.allowed_hosts asks for a network"),
    "verifier.collect": ("[verifier]\ncollect = []", ""),
    "verifier.collect.command": ('[[verifier.collect]]\ncommand = "ls"', ""),
    "verifier.collect.service": (
        '[[verifier.collect]]\ncommand = "ls"\nservice = "db"',
        "verifier.collect.0.service Input",
    ),
    "verifier.collect.timeout_sec": ('[[verifier.collect]]\ncommand = "ls"\ntimeout_sec = 5', ""),
    "verifier.collect.user": (
        '[[verifier.collect]]\ncommand = "ls"\nuser = 0',
        "verifier.collect.0.user is not supported",
    ),
    "environment.os": ('[environment]\nos = "Windows"', "environment.os Input should be 'linux'"),
    "environment.workdir": ('[environment]\nworkdir = "/app/src"', ""),
    "environment.env": ('[environment]\nenv = { A = "b" }', ""),
    "environment.cpus": ("[environment]\ncpus = 1.5", ""),
    "environment.memory_mb": ("[environment]\nmemory_mb = 512", ""),
    "environment.storage_mb": ("[environment]\nstorage_mb = 10240", ""),
    "environment.docker_image": ('[environment]\ndocker_image = "x"', "it needs an image"),
    "environment.healthcheck": ('[environment.healthcheck]\ncommand = "true"', ""),
    "environment.healthcheck.command": (
        "[environment.healthcheck]\nretries = 2",
        "environment.healthcheck.command Field re",
    ),
    "environment.healthcheck.timeout_sec": ('[environment.healthcheck]\ncommand = "true"\ntimeout_sec = 5', ""),
    "environment.healthcheck.interval_sec": ('[environment.healthcheck]\ncommand = "true"\ninterval_sec = 5', ""),
    "environment.healthcheck.start_period_sec": (
        '[environment.healthcheck]\ncommand = "true"\nstart_period_sec = 5',
        "",
    ),
    "environment.healthcheck.start_interval_sec": (
        '[environment.healthcheck]\ncommand = "true"\nstart_interval_sec = 5',
        "",
    ),
    "environment.healthcheck.retries": ('[environment.healthcheck]\ncommand = "true"\nretries = 5', ""),
    "environment.build_timeout_sec": ("[environment]\nbuild_timeout_sec = 5", ""),
    "environment.gpus": ("[environment]\ngpus = 1", "environment.gpus is not supported"),
    "environment.gpu_types": ('[environment]\ngpu_types = ["H100"]', "environment.gpu_types is not supported"),
    "environment.tpu": ('[environment]\ntpu = { type = "v4", topology = "2x2" }', "environment.tpu is not supported"),
    "environment.mcp_servers": ('[[environment.mcp_servers]]\nname = "x"', "environment.mcp_servers is not supported"),
    "environment.skills_dir": ('[environment]\nskills_dir = "/s"', "environment.skills_dir is not supported"),
    "environment.network_mode": (
        '[environment]\nnetwork_mode = "allowlist"',
        "environment.network_mode asks for a network",
    ),
    "environment.allowed_hosts": (
        '[environment]\nallowed_hosts = ["a.b"]',
        "environment.allowed_hosts asks for a network",
    ),
}
"""Field of ``task.toml``, schema 1.4 → a file with it, and the reason for which it is refused; "": it is not."""
OTHERS = {
    "version": ('version = "1.0"', ""),
    "another version": ('schema_version = "2.0"', "schema_version Input should be '1.0', '1.1', '1.2', '1.3' or '1.4'"),
    "no section": ("[agents]\ntimeout_sec = 1", "agents is no field of Harbor's schema 1.4"),
    "no field": ("[environment]\nmemory_gb = 1", "environment.memory_gb is no field of Harbor's schema 1.4"),
    "of the tests' place": ("[verifier.environment]\ngpus = 1", "verifier.environment.gpus is not supported"),
    "both places": (
        '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]',
        "verifier environment_mode is shared",
    ),
    "no time": ("[agent]\ntimeout_sec = -1", "agent.timeout_sec Input should be greater than 0"),
    "memory": ('[environment]\nmemory = "1.5G"', ""),
    "no memory": ('[environment]\nmemory = "lots"', "environment memory is no size"),
    "no gpus": ("[environment]\ngpus = 0", ""),
    "internet": ("[environment]\nallow_internet = true", "environment.network_mode asks for a network"),
    "no internet": ("[environment]\nallow_internet = false", ""),
    "unset variable": ('[environment]\nenv = { A = "${NOT_SET}" }', "environment.env.A needs the variable NOT_SET"),
    "workdir": (
        '[environment]\nworkdir = "/usr/src"',
        "environment.workdir is no directory below one of the task's own",
    ),
    "artifact": (
        'artifacts = ["/var/x"]\n[verifier.environment]',
        "artifacts of other places than the working directory",
    ),
    "no toml": ("[", "a file of the task cannot be read"),
}


def read_as(folder: Path, toml: str, **options: Any) -> str:
    """The reason for which a task with this file is left out; "" where it is not."""
    (made,) = made_task(of(harbor(folder, toml=toml), **options)).prompts(Letters(), "train")
    return made.reason if isinstance(made, LeftOut) else ""


@pytest.mark.parametrize(("toml", "reason"), [*FIELDS.values(), *OTHERS.values()], ids=[*FIELDS, *OTHERS])
def test_each_field_of_the_format_is_taken_or_refused_by_name_before_the_run(tmp_path, toml: str, reason: str) -> None:
    found = read_as(tmp_path / "hello", toml)
    assert found.startswith(reason) if reason else found == ""


def test_a_task_that_asks_for_a_network_is_played_without_one_where_the_options_say_so(tmp_path) -> None:
    assert read_as(tmp_path / "hello", '[environment]\nnetwork_mode = "public"', offline=True) == ""


def fields_of(model: Any, above: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{above}{name}"
        for part in (field.annotation, *get_args(field.annotation)):
            if hasattr(part, "model_fields") and f"{above}{name}" != "verifier.environment":
                yield from fields_of(part, f"{above}{name}.")


def test_the_table_above_has_every_field_and_no_other() -> None:
    assert sorted(fields_of(TaskToml)) == sorted({*FIELDS, "agent", "verifier", "environment"})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("environment/Dockerfile", "it needs an image"),
        ("environment/docker-compose.yaml", "services of a compose file are not supported"),
        ("trajectory.json", "trajectory.json is not supported"),
        ("tests/.harborignore", "tests/.harborignore is not supported"),
    ],
)
def test_a_file_that_asks_for_what_there_is_not_is_refused_by_name(tmp_path, name: str, reason: str) -> None:
    harbor(tmp_path / "tasks" / "two")
    (harbor(tmp_path / "tasks" / "one") / name).write_text("FROM x")
    first, second = made_task(of(tmp_path / "tasks")).prompts(Letters(), "train")
    assert (first.reason, second.id) == (reason, "two")


def test_a_task_without_instruction_or_tests_is_left_out(tmp_path) -> None:
    for name in ("instruction.md", "tests/test.sh"):
        (harbor(tmp_path / name[0]) / name).unlink()
    first, second = made_task(of(tmp_path)).prompts(Letters(), "train")
    assert (first.reason, second.reason) == ("a file of the task cannot be read", "no tests/test.sh")


@pytest.mark.parametrize("heldout", [1, 2, -1])
def test_as_many_tasks_as_there_are_cannot_be_held_out(tmp_path, heldout) -> None:
    with pytest.raises(ConfigError, match="there are 1 tasks"):
        made_task(of(harbor(tmp_path / "hello"), heldout=heldout))


def test_a_directory_without_tasks_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="there is no task"):
        made_task(of(tmp_path))


def test_marks_for_those_who_collect_data_are_no_part_of_the_instruction(tmp_path) -> None:
    folder = harbor(tmp_path / "hello")
    (folder / "instruction.md").write_text("<!-- BENCHMARK canary 12 -->\n# a Canary, too\n\n# Task\nDo.")
    (prompt,) = made_task(of(folder)).prompts(Letters(), "train")
    asked = Letters().decode(prompt.token_ids)
    assert "canary" not in asked.lower()
    assert "# Task" in asked


@pytest.mark.parametrize(
    ("mapping", "text", "reward"),
    [
        (None, b"0.5\n", 0.5),
        (b'{"reward": 1}', None, 1.0),
        (b'{"reward": 1}', b"0.5", 1.0),
        (b'{"a": 1, "b": 0}', None, 0.5),
        (b"0.25", b"", 0.25),
        (b"", b"0.25", None),
        (None, b"nan", None),
        (None, b"1e300", None),
        (None, b"-0.5", None),
        (None, b"1_0", None),
        (None, b"0_1", None),
        (None, b"2", None),
        (b'{"n_tests": 40}', None, None),
        (b'{"a": 2, "b": 0}', None, None),
        (b'{"reward": 2}', None, None),
        (None, b"x", None),
        (b"{}", None, None),
        (b'{"a": "x"}', None, None),
        (b"1" + b"0" * 400, None, None),
        (b'{"a": 1e308, "b": 1' + b"0" * 400 + b"}", None, None),
        (b"[" * 100_000, None, None),
        (None, None, None),
    ],
)
def test_a_reward_from_0_to_1_is_read_from_the_mapping_or_else_the_text(mapping: Any, text: Any, reward: Any) -> None:
    assert read_reward(mapping, text) == reward
