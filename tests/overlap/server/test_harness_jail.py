"""Agent programs in a jail: what they find, how they end, and what a hostile one cannot reach."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from agent_runs import AGENT, Reading, jailed, rolled
from leftovers import said
from places import ROOT, SUPPORT

from overlap.config.fields import Config
from overlap.config.rollout import EpisodeConfig
from overlap.core import Prompt
from overlap.core.errors import ConfigError
from overlap.server.harness_jail import agent_space, readable_paths

PYTHON = f"{sys.executable} -S"
CLEAN_S = 30.0


def test_it_speaks_to_the_policy_finds_the_tasks_files_and_leaves_its_answer(tmp_path) -> None:
    made = jailed(tmp_path, f"echo more >> deep/er.txt && {AGENT} writes && printf x > deep/er.txt")
    assert (made.failure, made.text, made.finish, made.turns) == ("", "written: a2", "stop", 2)


HOSTILE = """
import json, os, socket, sys
paths, port, abstract, other = json.loads(sys.argv[1])
def connect(family, kind, address):
    with socket.socket(family, kind) as made:
        made.settimeout(2)
        made.connect(address)
        made.send(b"x")
        return "connected to %r" % (address,)
def reached(attempt):
    try:
        return attempt()
    except OSError:
        return None
inet, unix, tcp, udp = socket.AF_INET, socket.AF_UNIX, socket.SOCK_STREAM, socket.SOCK_DGRAM
attempts = [lambda path=path: (os.listdir if os.path.isdir(path) else open)(path) and path for path in paths]
attempts += [
    lambda: connect(inet, tcp, ("127.0.0.1", port)),
    lambda: connect(inet, tcp, (other, port)),
    lambda: connect(inet, udp, (other, port)),
    lambda: connect(unix, tcp, "\\0" + abstract),
    lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) and "netlink",
    lambda: socket.socket(inet, socket.SOCK_RAW, 1) and "raw",
    lambda: socket.socket(socket.AF_VSOCK, tcp) and "vsock",
]
if os.path.exists("/box/work"):  # never on the machine itself
    attempts += [lambda: open("/usr/bin/was-here", "w") and "tools", lambda: open("/was-here", "w") and "root"]
print(json.dumps([found for found in map(reached, attempts) if found]), file=open("reached.json", "w"))
"""


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """What a hostile program looks for: files, a port and an abstract socket of the machine, an address of it."""
    precious = tmp_path_factory.mktemp("precious") / "key.txt"
    precious.write_text("secret")
    with ExitStack() as held:
        port = held.enter_context(socket.create_server(("0.0.0.0", 0))).getsockname()[1]
        abstract = f"overlap-test-{os.getpid()}"
        name = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        name.bind(f"\0{abstract}")
        name.listen()
        own = [a.address for found in psutil.net_if_addrs().values() for a in found if a.family == socket.AF_INET]
        other = next((address for address in own if not address.startswith("127.")), "192.0.2.1")
        yield [[str(precious), str(Path.home()), os.getcwd(), "/etc/passwd", "/var"], port, abstract, other]


@pytest.mark.promise("harnesses")
def test_a_hostile_one_reaches_nothing_of_the_machine(tmp_path, outside: list[Any]) -> None:
    class Reports(Reading):
        def files(self, prompt: Prompt, text: str) -> Mapping[str, str]:
            return {"prompt.txt": text, "hostile.py": HOSTILE}

        def answer(self, prompt: Prompt, folder: Path, said: str) -> str:
            return (folder / "reached.json").read_text().strip()

    outside[0].append(str(tmp_path))
    asked = json.dumps(outside)
    command = f"{AGENT} ends && {PYTHON} hostile.py '{asked}'"
    without = json.loads(rolled(tmp_path, command, Reports()).text)
    assert {outside[0][0], str(tmp_path), "netlink", f"connected to ('127.0.0.1', {outside[1]})"} <= set(without)
    made = jailed(tmp_path, command, Reports())
    assert (made.failure, json.loads(made.text)) == ("", [])


@pytest.mark.promise("secrets")
def test_it_gets_no_variable_of_the_machine(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MY_SECRET_KEY", "secret")
    made = jailed(tmp_path, f"{AGENT} ends; env | grep -c -e SECRET -e OVERLAP > found; true", Reading())
    assert made.text == "found=0"


@pytest.mark.parametrize(
    ("command", "limits", "cause"),
    [
        (f"{PYTHON} -c 'while True: pass'", {"cpu_s": 1}, "cpu"),
        (f"{PYTHON} -c 'x = bytearray(1 << 28)'", {"memory_bytes": 1 << 27}, "memory"),
        ("while sleep 0.01 & do :; done; wait", {"processes": 20}, "processes"),
    ],
)
def test_one_that_takes_too_much_is_ended_and_the_limit_is_named(
    tmp_path, command: str, limits: Any, cause: str
) -> None:
    failure = jailed(tmp_path, f"{AGENT} ends; {command}", jail=limits).failure
    assert failure == f"episode.command was ended, by its limit or rule: {cause} (episode.jail)" or (
        cause == "processes" and "ended with" in failure
    )


def test_its_disk_is_bounded(tmp_path) -> None:
    command = f"{AGENT} ends; head -c 100M /dev/zero > big; size=$(stat -c %s big); rm big; echo $size > found"
    size = int(jailed(tmp_path, command, Reading(), jail={"work_bytes": 8 << 20}).text.removeprefix("found="))
    assert size <= 8 << 20


def test_it_reads_what_is_named_as_readable_and_changes_nothing_there(tmp_path) -> None:
    data, scratch = tmp_path / "data", tmp_path / "scratch"
    scratch.mkdir()
    data.mkdir(mode=0o755)
    (data / "x").write_text("readable")
    (data / "x").chmod(0o644)
    command = f"{AGENT} ends; cp {data}/x found; echo y > {data}/x; true"
    assert jailed(scratch, command, Reading(), jail={"readable": [str(data)]}).text == "found=readable"
    assert (data / "x").read_text() == "readable"


@pytest.mark.parametrize(
    ("episode", "told"),
    [
        (
            {"jail": {"cpus": 3}},
            r"episode.jail.cpus=3: is not a field; did you mean episode.jail.cpu_s",
        ),
        ({"jail": {"processes": 1.5}}, "episode.jail.processes=1.5"),
        (
            {"jail": {"readable": ["/nowhere"]}},
            "episode.jail.readable='/nowhere': there is no such file",
        ),
        ({"jail": {"readable": ["/"]}}, "episode.jail.readable='/': name files and directories"),
        (
            {"jail": {"readable": ["data"]}},
            "episode.jail.readable='data': name files and directories",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_field_and_value(episode: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        agent_space(Config(episode=EpisodeConfig(command="true", **episode)))


@pytest.mark.promise("harnesses")
def test_nothing_of_it_outlives_a_driver_that_is_killed(tmp_path) -> None:
    driver = subprocess.Popen(
        [sys.executable, str(SUPPORT / "episode_driver.py"), "4", "A"],
        env=os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": f"{ROOT}{os.pathsep}{SUPPORT}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        agents: list[psutil.Process] = []
        while not any("tiny_agent" in said(process) for process in agents):
            assert driver.poll() is None
            agents = psutil.Process(driver.pid).children(recursive=True)
        driver.kill()
    assert psutil.wait_procs(agents, timeout=CLEAN_S)[1] == []
    until = time.monotonic() + CLEAN_S
    while left := [path.name for path in tmp_path.iterdir() if path.name.startswith("ovl-")]:
        assert time.monotonic() < until, left


def test_a_python_that_is_older_than_ours_shows_its_directories(tmp_path: Path) -> None:
    """Before 3.11 it knows no ``-P``."""
    older = tmp_path / "python3.9"
    older.write_text(f'#!/bin/sh\ncase "$*" in *-P*) exit 2 ;; esac\nexec {sys.executable} "$@"\n')
    older.chmod(0o755)
    assert sys.prefix in readable_paths(f"{older} -c pass", ())
