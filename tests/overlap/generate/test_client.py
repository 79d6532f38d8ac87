"""One engine on its seat, behind its gate: loads, requests, its death, and how a request is sampled."""

import ast
import asyncio
import inspect
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from engine_stub import CFG, LOAD, UPDATE, StubEngine, request, turns

from overlap.config.load import load_config
from overlap.core import Prompt, Request, VersionSpan, WeightUpdate
from overlap.core.errors import EngineError
from overlap.generate import client as client_module
from overlap.generate.client import EngineClient
from overlap.generate.engine import VllmEngine
from overlap.generate.host import EngineHost
from overlap.placement.devices import Devices
from overlap.placement.seats import place
from overlap.process.calls import RemoteFault


@pytest.mark.promise("construction")
def test_making_a_generator_imports_no_vllm_and_starts_no_thread(tmp_path):
    code = (
        "import sys, threading, pathlib\n"
        "from overlap.config.fields import Config\n"
        "from overlap.generate.client import EngineClient\n"
        f"EngineClient(Config(), pathlib.Path({str(tmp_path)!r}), pathlib.Path({str(tmp_path)!r}))\n"
        "assert threading.active_count() == 1\n"
        "print(sorted({'vllm', 'torch', 'transformers', 'zmq'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("gate")
async def test_nothing_is_sampled_before_a_version_is_loaded(generator, stub):
    task = asyncio.create_task(generator.generate(request()))
    await generator.start()
    await turns()
    assert stub.engine.calls == []
    await generator.load(UPDATE)
    trajectory = await task
    assert (trajectory.token_ids, trajectory.finish, trajectory.id) == ((5, 6), "stop", "g7s0")
    assert trajectory.spans == (VersionSpan(3, 0, 2),)
    assert trajectory.started_s <= trajectory.finished_s
    assert stub.engine.calls[:5] == ["pause", *LOAD, "resume"]


@pytest.mark.promise("gate")
async def test_a_failed_load_keeps_the_gate_shut_and_the_engine_paused_until_one_succeeds(generator, stub):
    await generator.load(UPDATE)
    stub.engine.broken_loads = 1
    with pytest.raises(EngineError, match="version 3: RuntimeError: no such file"):
        await generator.load(UPDATE)
    task = asyncio.create_task(generator.generate(request()))
    await turns()
    assert stub.engine.calls[-2:] == ["pause", "begin"]
    await generator.load(UPDATE)
    await task
    assert stub.engine.calls[-7:] == ["pause", "abandon", *LOAD, "resume", "sample g7s0"]


async def test_who_waited_at_the_gate_waits_on_when_it_is_shut_at_once(generator, stub):
    await generator.load(UPDATE)
    generator._gate.clear()
    waits = asyncio.create_task(generator.generate(request()))
    await turns()
    generator._gate.set()
    generator._gate.clear()
    await turns()
    assert "sample g7s0" not in stub.engine.calls
    generator._gate.set()
    await waits


async def test_an_update_of_another_backend_is_refused_before_the_pause(generator, stub):
    with pytest.raises(EngineError, match="a nccl update for an engine that was opened for shm"):
        await generator.load(WeightUpdate(1, "nccl", {}))
    assert "pause" not in stub.engine.calls


@pytest.mark.promise("stage-faults")
async def test_cancelling_aborts_the_request(generator, stub):
    await generator.load(UPDATE)
    stub.engine.release.clear()
    task = asyncio.create_task(generator.generate(request(4)))
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stub.engine.calls[-1] == "abort g7s4"


async def test_a_prompt_that_fills_the_context_is_an_error_that_says_so(generator):
    await generator.load(UPDATE)
    with pytest.raises(EngineError, match=r"request g7s0: a prompt of 16 tokens .* context of 16"):
        await generator.generate(request(prompt=(1,) * 16))


@pytest.mark.promise("gate")
async def test_alone_it_opens_with_version_0_also_in_a_thread_and_when_made_inside_a_running_loop(tmp_path, stub):
    async def main():
        generator = EngineClient(CFG, tmp_path, tmp_path, standalone=True)
        text = (await generator.generate(request())).text
        await generator.close()
        return text

    assert await asyncio.to_thread(asyncio.run, main()) == "hi"
    assert stub.engine.calls[:1] == ["sample g7s0"]


@pytest.mark.promise("deadlines")
async def test_the_death_of_the_engine_ends_every_wait_with_its_cause(generator, stub, tmp_path):
    await generator.load(UPDATE)
    (tmp_path / "engine.log").write_text("INFO fine\nRuntimeError: out of memory\nINFO bye\n")
    stub.engine.release.clear()
    waits = [asyncio.create_task(generator.generate(request(i))) for i in range(3)]
    waits.append(asyncio.create_task(generator.wait_dead()))
    await turns()
    os.kill(stub.engine.process.pid, signal.SIGKILL)
    for wait in (*waits, generator.generate(request())):
        with pytest.raises(EngineError, match=r"was killed by signal 9 .*engine.log: RuntimeError: out of memory$"):
            await wait
    assert generator.pids() == ()


async def test_close_may_be_called_twice_and_before_start_and_ends_the_wait_for_death(generator, stub):
    dead = asyncio.create_task(generator.wait_dead())
    await generator.close()
    await generator.close()
    await dead
    with pytest.raises(EngineError, match="was closed"):
        await generator.generate(request())
    assert stub.count == 0


async def test_close_ends_an_engine_that_is_still_starting_and_all_who_wait_for_it(generator, stub):
    stub.prepare = lambda engine: engine.opened.clear()
    starts = [asyncio.create_task(generator.start()) for _ in range(2)]
    await turns()
    assert stub.engine.process.poll() is None
    await generator.close()
    for start in starts:
        with pytest.raises(EngineError, match="the engine was closed"):
            await start
    assert stub.engine.process.poll() == -signal.SIGKILL
    assert stub.count == 1


async def test_a_caller_who_is_cancelled_leaves_the_start_to_the_others(generator, stub):
    stub.prepare = lambda engine: engine.opened.clear()
    first, second = (asyncio.create_task(generator.start()) for _ in range(2))
    await turns()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    stub.engine.opened.set()
    await second
    assert stub.count == 1


async def test_a_start_that_fails_is_not_tried_again_and_ends_the_process(generator, stub):
    stub.prepare = lambda engine: setattr(engine, "open_error", RemoteFault("ValueError: head size 17"))
    for call in (generator.start(), generator.start(), generator.wait_dead()):
        with pytest.raises(EngineError, match="start: ValueError: head size 17"):
            await call
    assert stub.count == 1
    assert stub.engine.process.wait(20) == -signal.SIGKILL


@pytest.mark.promise("deadlines")
async def test_an_engine_that_does_not_answer_its_load_in_time_is_dead(generator, stub, monkeypatch):
    monkeypatch.setitem(client_module._DEADLINES_S, "receive_weights", 0.05)
    stub.prepare = lambda engine: setattr(engine, "receive_weights", lambda *given: asyncio.Event().wait())
    for call in (generator.load(UPDATE), generator.wait_dead()):
        with pytest.raises(EngineError, match="the engine did not answer in time"):
            await call
    stub.engine.process.wait(20)


async def test_a_load_that_drains_waits_for_what_the_engine_has_and_new_requests_wait_for_the_load(draining, stub):
    await draining.load(UPDATE)
    stub.engine.release.clear()
    inside = asyncio.create_task(draining.generate(request(0)))
    await turns()
    load = asyncio.create_task(draining.load(UPDATE))
    await turns()
    late = asyncio.create_task(draining.generate(request(1)))
    await turns()
    assert stub.engine.calls[-1] == "sample g7s0"
    stub.engine.release.set()
    await asyncio.gather(inside, load, late)
    assert stub.engine.calls[-6:] == ["pause", *LOAD, "resume", "sample g7s1"]


async def test_a_load_that_drains_lands_at_its_deadline_whatever_is_left(draining, stub, monkeypatch):
    monkeypatch.setattr(client_module, "_DRAIN_S", 0)
    await draining.load(UPDATE)
    stub.engine.release.clear()
    left = asyncio.create_task(draining.generate(request(0)))
    await turns()
    await draining.load(UPDATE)
    assert (stub.engine.calls[-1], left.done()) == ("resume", False)
    stub.engine.release.set()
    await left


async def test_after_a_failed_load_nothing_moves_in_the_engine_and_the_next_waits_for_nothing(draining, stub):
    await draining.load(UPDATE)
    stub.engine.broken_loads = 1
    with pytest.raises(EngineError):
        await draining.load(UPDATE)
    draining._empty.clear()  # a request is frozen in there
    await draining.load(UPDATE)
    assert stub.engine.calls[-1] == "resume"


PROMPT = Prompt("p", (1, 2, 3))


@pytest.mark.parametrize(
    ("asked", "temperature", "top_p"),
    [
        (Request(3, 0, PROMPT), 0.8, 1.0),
        (Request(-1, 0, PROMPT, 0.0), 0.0, 1.0),
        (Request(-1, 0, PROMPT, 0.25, 0.95), 0.25, 0.95),
    ],
)
def test_a_request_is_sampled_by_its_own_law_or_by_that_of_the_rollouts(tmp_path, asked, temperature, top_p):
    generator = EngineClient(load_config(None, ["rollout.temperature=0.8"]), tmp_path, tmp_path)
    found = generator._sampling(asked)
    assert (found.temperature, found.top_p) == (temperature, top_p)


@pytest.mark.promise("prompt-order")
def test_an_older_group_goes_before_a_younger_and_an_evaluation_before_both(tmp_path):
    generator = EngineClient(load_config(), tmp_path, tmp_path)
    first, *_, last = sorted((-1, 7, 3), key=lambda group: generator._sampling(Request(group, 0, PROMPT)).priority)
    assert (first, last) == (-1, 7)


def two_on(tmp_path, devices):
    cfg = replace(CFG, rollout=replace(CFG.rollout, replicas=2))
    placement = place(cfg, devices)
    return [EngineClient(cfg, tmp_path, tmp_path, placement=placement, engine=e) for e in range(2)]


async def test_each_of_several_engines_has_its_seat_its_seed_its_name_and_its_log(tmp_path, stub):
    engines = two_on(tmp_path, Devices(cores=(0, 1)))
    assert [engine._spec.seed for engine in engines] == [0, 1]
    assert [engine._log.name for engine in engines] == ["engine-0.log", "engine-1.log"]
    seats, folders = [], []
    for engine in engines:
        await engine.start()
        seats.append(stub.seat.environment)
        folders += [path.name.rpartition("-")[0] for path in tmp_path.iterdir() if path.is_dir()]
        await engine.close()
    assert seats == [{"VLLM_CPU_OMP_THREADS_BIND": "0"}, {"VLLM_CPU_OMP_THREADS_BIND": "1"}]
    assert folders == ["engine-0", "engine-1"]


async def test_each_of_several_engines_joins_the_group_of_all_with_ranks_of_its_own(tmp_path, stub):
    init = {"master_port": 1, "rank_offset": 1, "world_size": 3}
    joined = []
    for engine in two_on(tmp_path, Devices.gpus(3)):
        await engine.start()
        stub.engine.connect = lambda info: asyncio.sleep(0, joined.append(info))
        await engine.load(WeightUpdate(0, "nccl", {"init": init, "update": {}}))
        await engine.close()
    assert joined == [init, init | {"rank_offset": 2}]


async def test_the_process_of_an_engine_sees_its_own_gpus_alone(tmp_path, monkeypatch):
    asked = []

    async def start(life, title, module, environment):
        asked.append((title, environment["CUDA_VISIBLE_DEVICES"]))
        raise EngineError("enough")

    monkeypatch.setattr("overlap.generate.client.Peer.start", start)
    for engine in two_on(tmp_path, Devices(("2", "5", "7"))):
        with pytest.raises(EngineError, match="enough"):
            await engine.start()
        await engine.close()
    assert asked == [("the engine-0 process", "2"), ("the engine-1 process", "5")]


def test_the_process_of_an_engine_serves_every_call_of_the_driver_and_so_does_its_double():
    tree = ast.parse(Path(client_module.__file__).read_text())
    asked = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._ask"]
    assert len(asked) > 10
    for name, *given in ((ast.literal_eval(call.args[1]), *call.args[2:]) for call in asked):
        for end in (EngineHost if name == "open" else VllmEngine, StubEngine):
            inspect.signature(getattr(end, name)).bind(None, *given)
