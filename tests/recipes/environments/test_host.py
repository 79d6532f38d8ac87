"""The program beside a run that rolls episodes out: its answers, its faults, and its end."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pooling import family, living

from overlap.core import Prompt
from overlap.core.errors import RolloutError
from overlap.record.resume import data_digest
from recipes.environments import host as host_
from recipes.environments.host import EnvironmentHost, printed_json
from recipes.environments.scored import EnvironmentFault, Range, Seal, given_reward, scored

PROGRAM = """
import json, os, sys, subprocess, time
print(json.dumps({"ready": 1}), flush=True)
held = []
for line in sys.stdin:
    asked = json.loads(line)
    if "cancel" in asked:
        held.append(asked["cancel"])
    elif asked["what"] == "dies":
        print("out of paper", file=sys.stderr, flush=True)
        os._exit(3)
    elif asked["what"] == "waits":
        subprocess.Popen(["sleep", "1000"])
    elif asked["what"] == "fails":
        print(json.dumps({"id": asked["id"], "fault": "SandboxError: gone"}), flush=True)
    elif asked["what"] == "babbles":
        os.write(1, bytes.fromhex(asked["bytes"]))
    else:
        print(json.dumps({"id": asked["id"], "said": asked["what"], "cancelled": held}), flush=True)
"""


def hosted(work: Callable[[EnvironmentHost], Awaitable[Any]], program: str = PROGRAM) -> Any:
    """What ``work`` gives; nothing of the program is left."""

    async def main() -> Any:
        before = set(family(os.getpid()))
        async with EnvironmentHost([sys.executable, "-S", "-c", program], "box") as host:
            found = await work(host)
        assert not living([process for process in family(os.getpid()) if process not in before])
        return found

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_requests_are_answered_each_by_its_own_answer() -> None:
    async def work(host: EnvironmentHost) -> list[str]:
        return [found["said"] for found in await asyncio.gather(*(host.run({"what": str(n)}) for n in range(20)))]

    assert hosted(work) == [str(n) for n in range(20)]


def test_one_that_is_cancelled_is_told_and_the_others_go_on() -> None:
    async def work(host: EnvironmentHost) -> Any:
        await host.run({"what": "first"})
        waiting = asyncio.create_task(host.run({"what": "waits"}))
        await asyncio.sleep(0)
        await host.run({"what": "between"})
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return (await host.run({"what": "last"}))["cancelled"]

    assert hosted(work) == [2]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("fails", "box: SandboxError: gone"),
        ("dies", "box: its program has ended: out of paper"),
    ],
)
def test_a_fault_is_the_environments_and_the_next_request_is_answered(what: str, told: str) -> None:
    async def work(host: EnvironmentHost) -> str:
        with pytest.raises(EnvironmentFault, match=told):
            await host.run({"what": what})
        return str((await host.run({"what": "again"}))["said"])

    assert hosted(work) == "again"


UNPRINTABLE = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(host_.__file__).parent)!r})
import _verifiers_host
class Env:
    async def play(self, row, url, variable):
        return {{"reward": 1.0, "metrics": {{"seen": object()}}}}
print("{{}}", flush=True)
asyncio.run(_verifiers_host.answer_requests(Env(), sys.stdout))
"""


def test_a_result_that_no_line_can_hold_is_a_fault_and_no_wait_without_an_end() -> None:
    async def work(host: EnvironmentHost) -> None:
        with pytest.raises(EnvironmentFault, match=r"box: TypeError: float\(\) argument must be"):
            await host.run({"row": {}, "url": "", "key": ""})

    hosted(work, UNPRINTABLE)


NONSENSE = [
    (b"no json\n", "b'no json"),
    (b"\xff\xfe\x00\n", "b'.xff"),
    (b"[" * 3000 + b"\n", r"b'\[\["),
    (b"[1]\n", r"b'\[1"),
    (b'{"id": []}\n', "b'{"),
    (b"null\n", "b'null"),
    (b"x" * 5000 + b"\n", "a line without an end"),
    (b"x" * 50_000, "a line without an end"),
]


@pytest.mark.parametrize(("written", "told"), NONSENSE)
def test_an_answer_that_is_none_is_a_fault_that_names_the_process(
    monkeypatch: pytest.MonkeyPatch, written: bytes, told: str
) -> None:
    monkeypatch.setattr("recipes.environments.host.LINE_BYTES", 4096)

    async def work(host: EnvironmentHost) -> str:
        with pytest.raises(EnvironmentFault, match=rf"box: its program \(pid \d+\) wrote what is no answer: {told}"):
            await host.run({"what": "babbles", "bytes": written.hex()})
        return str((await host.run({"what": "again"}))["said"])

    assert hosted(work) == "again"


@pytest.mark.parametrize(("written", "told"), NONSENSE[::4])
def test_a_first_line_that_is_none_keeps_the_program_from_starting_and_names_it(
    monkeypatch: pytest.MonkeyPatch, written: bytes, told: str
) -> None:
    monkeypatch.setattr("recipes.environments.host.LINE_BYTES", 4096)

    async def work(host: EnvironmentHost) -> None:
        with pytest.raises(RolloutError, match=rf"box does not start: .*\(pid \d+\) wrote what is no answer: {told}"):
            await host.run({"what": "x"})

    hosted(work, f"import os, sys\nos.write(1, {written!r})\nsys.stdin.read()")


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("raise SystemExit('no such package')", "no such package"),
        ("import os; os._exit(3)", "its program ended without a word"),
    ],
)
def test_one_that_does_not_start_ends_the_run_with_what_it_said(program: str, told: str) -> None:
    async def work(host: EnvironmentHost) -> None:
        with pytest.raises(RolloutError, match=f"box does not start: .*{told}"):
            await host.run({"what": "x"})

    hosted(work, program)


def test_what_a_program_prints_is_read_or_refused() -> None:
    python = [sys.executable, "-S", "-c"]
    assert printed_json([*python, "print('[1]')"], 20) == [1]
    with pytest.raises(RolloutError, match=r"ended with 1: ValueError: bad"):
        printed_json([*python, "raise ValueError('bad')"], 20)
    with pytest.raises(RolloutError, match=r"JSONDecodeError"):
        printed_json([*python, "print('x')"], 20)
    with pytest.raises(RolloutError, match=r"RecursionError"):
        printed_json([*python, "print('[' * 100_000)"], 20)
    with pytest.raises(RolloutError, match=r"/no/such/python: No such file or directory"):
        printed_json(["/no/such/python"], 20)


def test_what_a_program_that_prints_rows_has_started_ends_with_it() -> None:
    before = set(family(os.getpid()))
    program = "import os, subprocess; subprocess.Popen(['sleep', '1000']); print('[1]')"
    assert printed_json([sys.executable, "-S", "-c", program], 20) == [1]
    assert not living([process for process in family(os.getpid()) if process not in before])


def test_a_reward_is_the_last_lines_with_the_seal_and_nobody_elses() -> None:
    data = {"row": 1, "seal": Seal()}
    assert given_reward(scored('{"reward": 1.0}', 0.25, data, metrics={"a": 1}), data) == 0.25
    assert given_reward(scored("x", True, data), pickle.loads(pickle.dumps(data))) == 1.0
    assert given_reward(scored("x", 1.0, data), {"row": 1, "seal": Seal()}) is None
    for other in ("", "said", '{"reward": 1.0}', '{"reward": 1.0, "seal": null}', "[1]", "[" * 100_000):
        assert given_reward(other, data) is None
    for wrong in (None, "1", float("nan"), float("inf"), 10**400):
        with pytest.raises(EnvironmentFault, match="must be a finite number"):
            scored("x", wrong, data)
    assert given_reward(scored("x", -3, data, Range(least=-3)), data) == -3.0
    with pytest.raises(EnvironmentFault, match=r"gave 1.5 as the reward, which is none from 0 to 1 \(data.options"):
        scored("x", 1.5, data, Range(0, 1))


def test_the_seal_is_no_part_of_the_data() -> None:
    one, other = (Prompt("p", (1,), "", {"row": {"a": 1}, "seal": Seal()}) for _ in range(2))
    assert data_digest([one]) == data_digest([other])
