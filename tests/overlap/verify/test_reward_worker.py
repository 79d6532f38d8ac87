"""Reward functions in worker processes: what hangs, dies, raises or prints there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from verifying import SOON_S, Worked, config, gone, score, trajectory

from overlap.core import Prompt, Scored
from overlap.core.errors import ConfigError, VerifierError
from overlap.core.user_code import RewardFault
from overlap.process import process_tree
from overlap.task import Task
from overlap.verify import reward_pool, reward_worker
from overlap.verify.reward_pool import RewardPool
from overlap.verify.reward_worker import WorkerLost
from overlap.verify.verifier import SandboxVerifier


@asynccontextmanager
async def pool_for(task: Task, workers: int = 1, **options: Any) -> AsyncIterator[RewardPool]:
    """Reward workers, which end with the block."""
    pool = RewardPool(task, workers, **({"wall_s": SOON_S} | options))
    try:
        yield pool
    finally:
        await pool.close()
    assert pool.pids() == ()


P = Prompt("p", ())


def test_a_reward_without_a_program_runs_in_another_process() -> None:
    first, second = score(Worked(lambda answer: os.getpid()), trajectory("x"), trajectory("y"))
    assert first.reward == second.reward != os.getpid()
    assert first.queued_s <= first.started_s <= first.finished_s <= second.queued_s
    assert gone(int(first.reward or 0))


@pytest.mark.promise("reward-workers")
async def test_an_answer_on_which_the_function_hangs_gets_0_once_the_worker_and_its_children_are_killed(
    tmp_path: Path,
) -> None:
    calls = tmp_path / "calls"
    told: list[str] = []

    def how(answer: str) -> float:
        if answer == "hang":
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            with calls.open("a") as file:
                file.write(f"{child.pid}\n")
            signal.pause()
        return 1.0

    async with pool_for(Worked(how), notify=told.append, wall_s=2.0) as pool:
        await pool.start()
        first = pool.pids()
        assert (await pool.reward(P, "hang")).value == 0.0  # though no call had returned
        assert (await pool.reward(P, "work")).value == 1.0
        assert pool.pids() != first
    (child,) = calls.read_text().split()  # it was not tried again
    assert gone(int(child))
    where = f"{Path(__file__).name}:{how.__code__.co_firstlineno + 5}"
    words = rf"Worked\.reward took more than 2 s of wall time in .*{where}, for prompt 'p'; .* so the reward is 0"
    assert [bool(re.fullmatch(words, line)) for line in told] == [True]


async def test_where_a_plain_answer_hangs_too_the_sample_is_masked(tmp_path: Path) -> None:
    """As when the function asks a service that is down: every answer would get 0."""
    down, told = tmp_path / "down", list[str]()

    def how(answer: str) -> float:
        if down.exists():
            signal.pause()
        return 1.0

    async with pool_for(Worked(how), notify=told.append, wall_s=1.0) as pool:
        assert (await pool.reward(P, "x")).value == 1.0
        down.touch()
        with pytest.raises(WorkerLost, match="the reward function took more than 1 s"):
            await pool.reward(P, "x")
        down.unlink()
        assert (await pool.reward(P, "x")).value == 1.0
    assert [line.rpartition("; ")[2] for line in told] == ["the sample is masked"]


# A call that gives the interpreter back to nobody, and one in a library.
HANGS = {"re": lambda answer: float(bool(re.match(r"(x+x+)+y", "x" * 60))), "sleep": lambda answer: time.sleep(600)}


@pytest.mark.promise("reward-workers")
@pytest.mark.parametrize("kind", HANGS)
async def test_a_reward_that_never_comes_back_stops_the_run_before_a_second_sample_and_says_where(kind: str) -> None:
    async with pool_for(Worked(HANGS[kind]), wall_s=1.0) as pool:
        await pool.start()
        with pytest.raises(
            RewardFault, match=rf"more than 1 s .* in .*{Path(__file__).name}:\d+, and no call has returned"
        ):
            await pool.reward(P, "x")


def test_an_error_in_a_library_names_the_users_line() -> None:
    def how(answer: str) -> float:
        return float(json.loads(answer))

    with pytest.raises(VerifierError, match=rf"raised JSONDecodeError: .* \(.*{Path(__file__).name}:\d+\), for sample"):
        score(Worked(how), trajectory("no json"))


class Weighed:
    """Data of a prompt that counts how often it is sent and loaded."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.text = folder, "x" * size

    def __reduce__(self) -> Any:
        (self.folder / f"sent-{time.monotonic_ns()}").touch()
        return _loaded, (self.folder, self.text)


def _loaded(folder: Path, text: str) -> Weighed:
    (folder / f"loaded-{time.monotonic_ns()}").touch()
    return Weighed(folder, len(text))


class Sized(Worked):
    def reward(self, prompt: Prompt, answer: str, judgement: Any) -> Any:
        return float(len(prompt.data.text))


@pytest.mark.parametrize(("kept", "sent"), [(64 << 20, 2), (1, 7)])
async def test_a_prompt_is_dumped_once_for_its_samples_and_loaded_once_for_those_in_a_row(
    kept: int, sent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_pool, "PROMPTS_BYTES_MAX", kept)
    small, large = (
        Prompt(name, (), data=Weighed(tmp_path, size)) for name, size in (("small", 10), ("large", 5 << 20))
    )

    async with pool_for(Sized(len)) as pool:
        asked = [small, small, large, large, small, large, small]
        got = [(await pool.reward(prompt, "x")).value for prompt in asked]
        assert got == [len(prompt.data.text) for prompt in asked]
    names = [name.partition("-")[0] for name in os.listdir(tmp_path)]
    assert (names.count("sent"), names.count("loaded")) == (sent, 5)


async def test_a_prompt_that_cannot_be_sent_or_loaded_is_the_users_error_and_costs_no_worker() -> None:
    async with pool_for(Worked(len)) as pool:
        await pool.start()
        first = pool.pids()
        with pytest.raises(ConfigError, match="prompt 'p' cannot be sent"):
            await pool.reward(Prompt("p", (), data=iter_forever()), "x")
        with pytest.raises(RewardFault, match="raised FileNotFoundError"):
            await pool.reward(Prompt("p", (), data=Unloadable(len)), "x")
        assert (await pool.reward(Prompt("q", ()), "x")).value == 1.0
        assert pool.pids() == first


@pytest.mark.promise("reward-workers")
def test_a_worker_that_dies_is_replaced_and_a_second_death_is_the_answers_fault_unless_it_was_killed(
    tmp_path: Path,
) -> None:
    flag = tmp_path / "flag"

    def how(answer: str) -> float:
        if answer == "exits":
            os._exit(3)
        if answer in ("crashes", "killed"):
            os.kill(os.getpid(), signal.SIGSEGV if answer == "crashes" else signal.SIGKILL)
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 1.0

    found = score(Worked(how), *map(trajectory, ("once", "exits", "crashes", "killed", "after")))
    assert [each.reward for each in found] == [1.0, 0.0, 0.0, None, 1.0]
    assert [each.failure for each in found if each.failure] == ["the reward worker died (signal 9)"]


async def test_time_without_a_core_is_none_of_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_for(Worked(lambda answer: time.sleep(1.5) or 1.0), wall_s=1.0) as pool:
        await pool.start()
        waits = itertools.count()
        monkeypatch.setattr(reward_worker, "_starved_s", lambda pid: 10.0 * next(waits))
        assert (await pool.reward(P, "x")).value == 1.0


async def test_a_dead_worker_is_noticed_although_its_child_holds_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def how(answer: str) -> float:
        if os.fork():
            os._exit(4)
        signal.pause()
        return 1.0

    monkeypatch.setenv("OVERLAP_TEST", f"{os.getpid()}.{time.monotonic_ns()}")
    mark = f"OVERLAP_TEST={os.environ['OVERLAP_TEST']}"
    try:
        async with pool_for(Worked(how), wall_s=600.0) as pool:
            with pytest.raises(WorkerLost, match="exit code 4"):
                await pool.reward(P, "x")
    finally:
        monkeypatch.undo()
        process_tree.kill_tree([p for p in process_tree.marked(mark) if not process_tree.is_tracker(p.pid)], SOON_S)


async def test_a_function_that_closes_the_connection_of_its_worker_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    def how(answer: str) -> float:
        if answer == "closes":
            os.closerange(3, 256)
            signal.pause()
        return 1.0

    monkeypatch.setattr(reward_worker, "_END_S", 0.1)
    told = list[str]()
    async with pool_for(Worked(how), wall_s=600.0, notify=told.append) as pool:
        assert [(await pool.reward(P, answer)).value for answer in ("closes", "works")] == [0.0, 1.0]
    assert ["closed the connection of its worker, for prompt 'p'; it returns" in line for line in told] == [True]


async def test_a_function_that_begins_a_reply_of_its_own_and_never_ends_it_is_no_hang(monkeypatch) -> None:
    def how(answer: str) -> float:
        if answer == "begins":
            for fd in range(3, 64):
                with contextlib.suppress(OSError):
                    socket.socket(fileno=os.dup(fd)).send(b"\0\0\1\0half")
            signal.pause()
        return 1.0

    monkeypatch.setattr(reward_worker, "_REST_S", 0.5)
    told = list[str]()
    async with asyncio.timeout(60), pool_for(Worked(how), wall_s=600.0, notify=told.append) as pool:
        assert [(await pool.reward(P, answer)).value for answer in ("begins", "works")] == [0.0, 1.0]
    assert ["wrote into the connection of its worker, for prompt 'p'" in line for line in told] == [True]


@pytest.mark.parametrize("error", [ValueError("too odd"), SystemExit("too odd")])
def test_an_error_in_a_workers_reward_stops_the_run(error: BaseException) -> None:
    def how(answer: str) -> float:
        raise error

    place = rf"{Path(__file__).name}:{how.__code__.co_firstlineno + 1}"
    expected = rf"Worked\.reward raised {type(error).__name__}: too odd \(.*{place}\).*sample g0s7"
    with pytest.raises(VerifierError, match=expected):
        score(Worked(how), trajectory("x", 7))


def iter_forever() -> Any:
    while True:
        yield


class Unsendable(Worked):
    def __init__(self) -> None:
        self.handle = iter_forever()


class Unloadable(Worked):
    def __reduce__(self) -> Any:
        return os.open, ("/no/such/file", os.O_RDONLY)


@pytest.mark.parametrize(
    ("task", "error", "said"),
    [
        (Unsendable(), ConfigError, r"task='Unsendable': the task cannot be sent .*generator"),
        (Unloadable(len), VerifierError, "could not load Unloadable: it raised FileNotFoundError"),
    ],
)
async def test_a_task_that_cannot_be_sent_to_a_worker_or_loaded_there_is_refused_at_the_start(
    task: Task, error: type[Exception], said: str
) -> None:
    verifier = SandboxVerifier(config(), task)
    with pytest.raises(error, match=said):
        await verifier.start()
    await verifier.close()


def test_close_ends_hanging_workers_and_the_samples_that_wait_for_them(tmp_path: Path) -> None:
    os.mkfifo(begun := tmp_path / "begun")

    def how(answer: str) -> float:
        begun.write_text("x")
        signal.pause()
        return 1.0

    async def run() -> tuple[int, ...]:
        verifier = SandboxVerifier(config(cpu_s=100.0), Worked(how))
        samples = [asyncio.create_task(verifier.score(trajectory("x", k))) for k in range(3)]
        await asyncio.to_thread(begun.read_text)
        samples[0].cancel()
        pids = verifier.pids()
        await verifier.close()
        results = await asyncio.gather(*samples, return_exceptions=True)
        assert not any(isinstance(r, Scored) and r.reward is not None for r in results)
        return pids

    (pid,) = asyncio.run(run())
    assert gone(pid)


async def test_workers_work_side_by_side(tmp_path: Path) -> None:
    os.mkfifo(ping := tmp_path / "ping")
    os.mkfifo(pong := tmp_path / "pong")

    def how(answer: str) -> float:
        if answer == "a":
            ping.write_text("x")
            return float(pong.read_text() == "y")
        pong.write_text(ping.read_text() and "y")
        return 1.0

    async with pool_for(Worked(how), 2) as pool:
        a, b = await asyncio.gather(pool.reward(P, "a"), pool.reward(P, "b"))
        assert (a.value, b.value, len(pool.pids())) == (1.0, 1.0, 2)


async def test_what_a_reward_prints_goes_to_the_log(tmp_path: Path) -> None:
    async with pool_for(Worked(lambda answer: print("seen:", answer)), log=tmp_path / "log") as pool:
        await pool.reward(P, "this")
    assert (tmp_path / "log").read_text() == "seen: this\n"
