"""Reward workers that do not start: our fault, told as that, and nothing is left of them."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import threading
import time
from typing import Any

import pytest
from starting import Held, refuse
from verifying import Worked, opened, trajectory

from overlap.core import Prompt
from overlap.core.errors import VerifierError
from overlap.verify import reward_worker
from overlap.verify.reward_pool import RewardPool
from overlap.verify.reward_worker import WorkerLost


class Slow(Worked):
    """To import what it needs takes for ever."""

    def __reduce__(self) -> Any:
        return time.sleep, (600,)


async def test_a_worker_that_is_slow_to_start_masks_the_sample_and_blames_no_reward_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reward_worker, "START_S", 0.05)
    told: list[str] = []

    async with opened(Slow(len)) as verifier:
        verifier._rewards._notify = told.append
        scored = await verifier.score(trajectory("x"))
        late = "the reward worker did not start, and load the task, within 0.05 s"
        assert (scored.reward, scored.failure) == (None, late)
        with pytest.raises(VerifierError, match=late):
            await verifier.start()
        assert verifier.pids() == ()
    assert told == []


@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [(subprocess, "Popen", errno.EAGAIN), (os, "pidfd_open", errno.EMFILE), (socket, "socketpair", errno.EMFILE)],
)
async def test_a_machine_without_room_for_a_worker_is_told_with_the_way_out_and_leaves_nothing(
    owner: Any, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = RewardPool(Worked(len), 1, wall_s=1.0)
    before = Held()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, refuse(number, getattr(owner, name)))
        with pytest.raises(
            WorkerLost, match=r"a reward worker cannot be started: .*; end other programs, or raise the limits"
        ):
            await pool.reward(Prompt("p", ()), "x")
        assert before.new() == set()
    await pool.close()


async def test_a_machine_without_a_thread_for_a_reward_masks_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(Worked(len)) as verifier:
        with monkeypatch.context() as patch:
            fault = RuntimeError("can't start new thread")
            patch.setattr(threading.Thread, "start", refuse(0, threading.Thread.start, fault=fault))
            scored = await verifier.score(trajectory("x"))
        assert (scored.reward, scored.failure) == (None, f"no thread can be started for a reward: {fault}")
        assert (await verifier.score(trajectory("x"))).reward == 1.0
