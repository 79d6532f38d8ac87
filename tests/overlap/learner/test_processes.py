"""Ranks in processes of their own, without DeepSpeed: what is answered, what ends them, and what is told then."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_stub import wait_until
from places import ROOT, SUPPORT

from overlap.config.fields import Config
from overlap.config.learn import LearnConfig
from overlap.core.errors import ConfigError, LearnerError, RunDirError
from overlap.learner import processes
from overlap.learner.learner import ProcessLearner
from overlap.learner.processes import RankLife, RankProcesses, RankSpec, rank_environment
from overlap.placement.devices import Devices
from overlap.placement.seats import Placement, RankSeat, place
from overlap.process.process_tree import Pid, alive, identify

Use = Callable[[RankProcesses], Awaitable[Any]]


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Use], Any]:
    """Start two doubles, use them, close them; nothing of them may be left."""
    monkeypatch.setattr(processes, "MODULE", "rank_stub")
    monkeypatch.setattr(processes, "rank_environment", lambda *asked: rank_environment(*asked) | {"PYTHONPATH": PATH})
    scratch = tmp_path / "scratch"

    async def started(use: Use) -> tuple[Any, list[Pid | None]]:
        life = RankLife(scratch, tmp_path / "log")
        placed = Placement(ranks=(RankSeat(0, seed=1), RankSeat(1, seed=1)))
        spec = RankSpec(0, life.folder / "rendezvous", tmp_path, tmp_path, Config(), 1, placed)
        made = RankProcesses(spec, life)
        try:
            async with asyncio.timeout(60):
                await made.start(60.0)
                known = [identify(pid) for pid in made.life.pids()]
                return await use(made), known
        finally:
            await made.close()
            await made.close()

    def run(use: Use) -> Any:
        result, known = asyncio.run(started(use))
        assert len(known) == 2
        assert not [rank for rank in known if rank is not None and alive(rank)]
        assert list(scratch.iterdir()) == []
        return result

    return run


PATH = f"{ROOT}{os.pathsep}{SUPPORT}"


async def begun(tmp_path: Path) -> None:
    """Wait until both ranks are at work."""
    await asyncio.to_thread(wait_until, lambda: len(list(tmp_path.glob("begun-*"))) == 2)


def closed(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.glob("closed-*"))


def test_every_rank_is_called_and_rank_0_answers(ranks: Callable[[Use], Any], tmp_path: Path) -> None:
    async def use(made: RankProcesses) -> list[Any]:
        return await asyncio.gather(*(made.call("rank", timeout_s=30) for _ in range(3)))

    assert ranks(use) == [0, 0, 0]
    assert closed(tmp_path) == ["closed-0", "closed-1"]
    said = (tmp_path / "log").read_text().splitlines()
    assert sorted(said) == [f"rank {rank} was asked" for rank in (0, 0, 0, 1, 1, 1)]


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_a_rank_cannot_write_is_an_error_of_this_call_alone(
    ranks: Callable[[Use], Any], which: int
) -> None:
    async def use(made: RankProcesses) -> Any:
        with pytest.raises(RunDirError, match=f"rank {which} cannot write"):
            await made.call("save", which, timeout_s=30)
        return await made.call("save", 2, timeout_s=30)

    assert ranks(use) == "saved"


@pytest.mark.parametrize(
    ("raised", "error", "says"),
    [
        (ValueError("head size 17"), LearnerError, "^learner rank 1 raised ValueError: head size 17\nTraceback"),
        (LearnerError("the loss of rank 1 is nan"), LearnerError, "^the loss of rank 1 is nan$"),
        (ConfigError("model.policy", "x", "cannot be loaded"), ConfigError, "^model.policy='x': cannot be loaded$"),
    ],
)
def test_a_rank_that_raises_says_why_with_a_traceback_where_it_is_a_bug_and_ends_all(
    ranks: Callable[[Use], Any], tmp_path: Path, raised: Exception, error: type[Exception], says: str
) -> None:
    async def use(made: RankProcesses) -> None:
        dead = asyncio.create_task(made.life.wait_dead())
        for _ in range(2):
            with pytest.raises(error, match=says):
                await made.call("step", 1, raised, timeout_s=30)
        with pytest.raises(error, match=says):
            await dead

    ranks(use)
    assert str(raised) in (tmp_path / "log").read_text()
    assert closed(tmp_path) == []


def test_a_rank_that_is_killed_is_named_with_what_to_do(ranks: Callable[[Use], Any], tmp_path: Path) -> None:
    async def use(made: RankProcesses) -> None:
        said = r"learner rank 1 \(pid \d+\) was killed by SIGKILL \(by the kernel where memory is short: see dmesg"
        with pytest.raises(LearnerError, match=rf"{said}, and lower .*\); its output is in {tmp_path / 'log'}"):
            await made.call("die", 1, timeout_s=30)

    ranks(use)


@pytest.mark.promise("deadlines")
def test_a_call_that_takes_too_long_ends_the_ranks(ranks: Callable[[Use], Any], tmp_path: Path) -> None:
    async def use(made: RankProcesses) -> None:
        for _ in range(2):
            with pytest.raises(LearnerError, match=r"the learner did not finish 'wait_for' within 0\.01 s"):
                await made.call("wait_for", tmp_path / "never", timeout_s=0.01)

    ranks(use)
    assert closed(tmp_path) == []


def test_a_call_that_is_cancelled_is_ended_by_the_ranks_which_then_take_the_next(
    ranks: Callable[[Use], Any], tmp_path: Path
) -> None:
    async def use(made: RankProcesses) -> Any:
        waiting = asyncio.create_task(made.call("wait_for", tmp_path / "now", timeout_s=30))
        await begun(tmp_path)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        (tmp_path / "now").touch()
        return await made.call("rank", timeout_s=30)

    assert ranks(use) == 0
    assert closed(tmp_path) == []  # what they may still do is not waited for


def test_closing_waits_for_no_call(ranks: Callable[[Use], Any], tmp_path: Path) -> None:
    async def use(made: RankProcesses) -> None:
        waiting = asyncio.create_task(made.call("wait_for", tmp_path / "never", timeout_s=30))
        await begun(tmp_path)
        await made.close()
        with pytest.raises(LearnerError, match="the learner was closed"):
            await waiting
        with pytest.raises(LearnerError, match="the learner was closed"):
            await made.call("rank", timeout_s=30)
        await made.life.wait_dead()

    ranks(use)
    assert closed(tmp_path) == []


def test_only_ranks_on_a_cpu_keep_the_memory_that_they_free() -> None:
    """On a GPU nothing is made on the CPU but the whole policy, once, while it is read."""
    assert "MALLOC_TRIM_THRESHOLD_" in rank_environment(0, 1)
    assert not [name for name in rank_environment(0, 1, "cuda") if name.startswith("MALLOC_")]


def test_deepspeed_starts_no_process_to_count_the_ranks_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`numactl` in a folder of PATH that a user may not read is a PermissionError, which DeepSpeed does not expect."""
    accelerator = pytest.importorskip("deepspeed.accelerator.cpu_accelerator").CPU_Accelerator()
    monkeypatch.setattr("subprocess.check_output", lambda *_, **__: pytest.fail("DeepSpeed has started a process"))
    monkeypatch.setenv("LOCAL_SIZE", rank_environment(1, 3)["LOCAL_SIZE"])
    assert accelerator.device_count() == 3


def test_each_rank_sees_its_own_gpu_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg, asked = Config(learn=LearnConfig(ranks=2)), []

    async def start(life: Any, title: str, module: str, environment: dict[str, str]) -> Any:
        asked.append(
            [environment.get(name) for name in ("RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "MALLOC_MMAP_MAX_")]
        )
        return SimpleNamespace(ask=lambda message: asyncio.sleep(0), close=lambda: asyncio.sleep(0))

    monkeypatch.setattr("overlap.learner.processes.Peer.start", start)

    async def main() -> None:
        placement = place(cfg, Devices(("3", "1", "0")))
        learner = ProcessLearner(cfg, tmp_path, tmp_path, total_updates=1, placement=placement)
        await learner.start()
        await learner.close()

    asyncio.run(main())
    assert asked == [["0", "0", "1", None], ["1", "0", "0", None]]
