"""`sandbox check-reward` and `sandbox zoo`: every kind of finding, each from a reward function that has it."""

from __future__ import annotations

import errno
import json
import subprocess
import tempfile
from pathlib import Path

import pytest
from package_files import Command
from places import ROOT
from starting import Held, refuse

from sandbox import Program, SandboxError
from sandbox.rewards import check as how
from sandbox.rewards.check import Findings, Options, RewardUnusable, check_reward
from sandbox.zoo import exhibits

RIGHT = exhibits.LabelledProgram("right", exhibits.SUM, Program(exhibits.HONEST_SUM), right=True)
WRONG = exhibits.LabelledProgram("wrong", exhibits.SUM, Program("print(0)\n"), right=False)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module `rewards`, found from the current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "rewards.py"


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for whatever is temporary."""
    (place := tmp_path / "temp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


def find(
    module: Path, body: str, *samples: exhibits.LabelledProgram, deadline_s: float = 10.0, repeats: int = 2
) -> Findings:
    module.write_text("import os, subprocess, sys, tempfile\ndef reward(problem, program, language):\n    " + body)
    options = Options("rewards:reward", deadline_s=deadline_s, repeats=repeats)
    return check_reward(options, samples or (RIGHT, WRONG))[0]


KNOWS = "return 1.0 if 'map' in program else 0.0"


@pytest.mark.promise("check-reward")
def test_a_reward_that_tells_right_from_wrong_is_clean(module: Path) -> None:
    found = find(module, KNOWS)
    assert found.clean
    assert (found.samples, found.calls) == (2, 4)
    assert found.latency_p50_s is not None


@pytest.mark.promise("check-reward")
@pytest.mark.parametrize(
    ("body", "accepts", "rejects"),
    [
        ("return True", ["wrong"], []),
        ("return 1", ["wrong"], []),
        ("import asyncio\n    return asyncio.sleep(0, 1.0)", ["wrong"], []),
        ("return 0.99", [], ["right"]),
    ],
)
def test_a_reward_that_pays_everything_or_nothing_is_found(
    module: Path, body: str, accepts: list[str], rejects: list[str]
) -> None:
    found = find(module, body)
    assert (found.false_accepts, found.false_rejects) == (accepts, rejects)


def test_a_reward_that_raises_or_dies_or_answers_text_crashes(module: Path) -> None:
    assert find(module, "1 / 0").crashes[0] == "right: ZeroDivisionError: division by zero"
    assert "died" in find(module, "os._exit(0)").crashes[0]
    assert "it returned 'yes' of type str" in find(module, "return 'yes'").crashes[0]


def test_a_hang_ends_at_the_deadline_and_is_not_tried_again(module: Path) -> None:
    found = find(module, "while True: pass", RIGHT, deadline_s=0.2)
    assert (found.hangs, found.calls) == (["right"], 1)


def test_what_outlives_a_call_is_counted_and_removed(module: Path, tmp_path: Path) -> None:
    body = "open(tempfile.mkstemp()[1]).close(); p = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
    body += f"    open({str(tmp_path / 'pids')!r}, 'a').write(f'{{p.pid}}\\n')\n    {KNOWS}"
    found = find(module, body, RIGHT)
    assert (found.leaked_processes, found.leaked_files) == (2, 2)
    for pid in (tmp_path / "pids").read_text().split():
        assert not Path("/proc", pid).exists()


def test_a_reward_that_changes_its_mind_is_found(module: Path, tmp_path: Path) -> None:
    body = f"calls = open({str(tmp_path / 'calls')!r}, 'a+'); calls.write('x'); calls.seek(0)\n"
    assert find(module, body + "    return float(len(calls.read()) % 2)", RIGHT).disagreements == ["right"]


def test_a_reward_may_use_a_multiprocessing_manager(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket's path has to fit into 107 bytes: here in a temporary folder of 20 characters."""
    body = "import multiprocessing\n    paid = multiprocessing.Manager().list()\n"
    body += "    paid.append(1.0 if 'map' in program else 0.0)\n    return paid[0]"
    with tempfile.TemporaryDirectory(prefix="managed", dir="/tmp") as folder:
        assert len(folder) == 20
        monkeypatch.setattr(tempfile, "tempdir", folder)
        found = find(module, body)
    assert found.clean, found.findings


def test_an_answer_that_a_program_writes_itself_is_no_answer(module: Path) -> None:
    forge = "[os.write(fd, b'{\"score\": 1.0}\\n') for fd in range(3, 64) if os.path.exists(f'/proc/self/fd/{fd}')"
    found = find(module, "try: " + forge + " and fd > 2]\n    except OSError: pass\n    os._exit(0)", WRONG)
    assert (found.false_accepts, len(found.crashes)) == ([], 1)


def test_nothing_stays_behind_when_a_program_kills_the_caller(module: Path, temp: Path) -> None:
    assert "killed the process" in find(module, "os.kill(os.getppid(), 9)", RIGHT).crashes[0]
    assert list(temp.iterdir()) == []


def test_none_is_masked_and_no_finding(module: Path) -> None:
    found = find(module, "return None", RIGHT)
    assert found.clean
    assert found.masked == ["right"]


def test_what_cannot_be_imported_is_our_error(module: Path) -> None:
    module.write_text("1 / 0")
    with pytest.raises(RewardUnusable, match="rewards:reward: ZeroDivisionError"):
        check_reward(Options("rewards:reward"), (RIGHT,))


# --- the commands -----------------------------------------------------------------------------------------------------

LABELS = """
from sandbox.zoo import catalogue; from sandbox.zoo.catalogue import labelled_programs
SAMPLES = [*catalogue.labelled_pairs(), *labelled_programs(harmful=True)]
PAID = {(sample.problem.id, sample.program.source) for sample in SAMPLES if sample.right}
def reward(problem, program, language):
    return (problem["id"], program) in PAID
def generous(problem, program, language):
    return 1.0
"""
ONCE = ("--repeats", "1")


def test_check_reward_ends_with_0_when_clean_and_1_when_not(module: Path, command: Command) -> None:
    module.write_text(LABELS)
    assert command(0, "check-reward", "rewards:reward", "--no-zoo", *ONCE).out.endswith("clean\n")
    shown = command(1, "check-reward", "rewards:generous", "--no-zoo", *ONCE).out
    assert "false accept   pair-sum-wrong-1" in shown
    assert shown.endswith("FOUND SOMETHING\n")


@pytest.mark.promise("check-reward")
def test_the_zoo_can_be_run_by_row_and_finds_what_a_careless_reward_pays(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    target = "recipes.reward_examples.in_process:reward"
    report = json.loads(command(1, "zoo", target, "--only", "always-equal", "--only", "6", *ONCE, "--json").out)
    assert set(report["false_accepts"]) == {
        "04-always-equal-1", "04-always-equal-2", "04-always-equal-3",
        "06-caller-frames-1", "06-caller-frames-2", "06-caller-frames-3",
    }  # fmt: skip
    assert report["false_rejects"] == []


def test_the_zoo_is_listed_without_a_function(command: Command) -> None:
    assert "always-equal" in command(0, "zoo").out
    assert {row["row"] for row in json.loads(command(0, "zoo", "--json").out)} == set(range(1, 56))


def test_bench_measures_each_language_and_names_the_tier(command: Command) -> None:
    report = json.loads(command(0, "bench", "--rounds", "1", "--json").out)
    assert report["tier"] in ("A", "B")
    assert {"python, 1 tests", "python, 15 tests"} <= {figure["name"] for figure in report["figures"]}


def test_a_module_that_is_slow_to_import_is_told_as_that(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(how, "_START_S", 0.05)
    module.write_text("import signal\nsignal.pause()\n")
    with pytest.raises(RewardUnusable, match=r"it was not imported within 0\.05 s"):
        check_reward(Options("rewards:reward"), [RIGHT])


def test_a_reward_that_stops_the_process_that_calls_it_is_told_as_that(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(how, "_MARGIN_S", 0.0)
    monkeypatch.setattr(how, "_END_S", 0.2)
    found = find(module, "os.kill(os.getppid(), 19)", RIGHT, deadline_s=1.0, repeats=1)
    assert found.crashes == ["right: it stopped the process that called it"]


def test_a_machine_without_room_for_the_process_that_calls_it_is_told_and_leaves_nothing(
    module: Path, temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Held()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse(errno.EAGAIN, subprocess.Popen))
        with pytest.raises(SandboxError, match=r"cannot be started: .*; raise the limit on processes"):
            find(module, KNOWS)
    assert before.new() == set()
    assert list(temp.iterdir()) == []
