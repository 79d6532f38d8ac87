import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest
from engine_stub import CFG, UPDATE, request, run, turns

from overlap.core import VersionSpan, WeightUpdate
from overlap.errors import EngineError
from overlap.generate import client as client_module
from overlap.generate.client import EngineClient
from overlap.process import RemoteFault


@pytest.fixture
def generator(tmp_path, stub):
    return EngineClient(CFG, tmp_path, tmp_path)


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


def test_nothing_is_sampled_before_a_version_is_loaded(generator, stub):
    async def main():
        task = asyncio.create_task(generator.generate(request()))
        await generator.start()
        await turns()
        assert stub.engine.calls == ["probe at 1.0"]
        await generator.load(UPDATE)
        trajectory = await task
        await generator.close()
        return trajectory

    trajectory = run(main())
    assert (trajectory.token_ids, trajectory.finish, trajectory.id) == ((5, 6), "stop", "g7s0")
    assert trajectory.spans == (VersionSpan(3, 0, 2),)
    assert trajectory.started_s <= trajectory.finished_s
    assert stub.engine.calls[:4] == ["probe at 1.0", "pause", "version 3", "resume"]


def test_a_failed_load_keeps_the_gate_shut_and_the_engine_paused_until_one_succeeds(generator, stub):
    async def main():
        await generator.load(UPDATE)
        stub.engine.broken_loads = 1
        with pytest.raises(EngineError, match="version 3: RuntimeError: no such file"):
            await generator.load(UPDATE)
        task = asyncio.create_task(generator.generate(request()))
        await turns()
        assert stub.engine.calls[-1] == "pause"
        await generator.load(UPDATE)
        await task
        assert stub.engine.calls[-5:] == ["pause", "abandon", "version 3", "resume", "sample g7s0"]

    run(main(), generator)


def test_who_waited_at_the_gate_waits_on_when_it_is_shut_at_once(generator, stub):
    async def main():
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

    run(main(), generator)


def test_an_update_of_another_backend_is_refused_before_the_pause(generator, stub):
    async def main():
        with pytest.raises(EngineError, match="a nccl update for an engine that was opened for shm"):
            await generator.load(WeightUpdate(1, "nccl", {}))
        assert "pause" not in stub.engine.calls

    run(main(), generator)


def test_cancelling_aborts_the_request(generator, stub):
    async def main():
        await generator.load(UPDATE)
        stub.engine.release.clear()
        task = asyncio.create_task(generator.generate(request(4)))
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stub.engine.calls[-1] == "abort g7s4"

    run(main(), generator)


def test_a_prompt_that_fills_the_context_is_an_error_that_says_so(generator):
    async def main():
        await generator.load(UPDATE)
        with pytest.raises(EngineError, match=r"request g7s0: a prompt of 16 tokens .* context of 16"):
            await generator.generate(request(prompt=(1,) * 16))

    run(main(), generator)


def test_another_event_loop_is_refused(generator):
    async def first():
        await generator.load(UPDATE)

    async def close():
        await generator.close()

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(first())
        with pytest.raises(EngineError, match="another event loop"):
            run(generator.generate(request()))
        loop.run_until_complete(close())
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_alone_it_opens_with_version_0_also_in_a_thread_and_when_made_inside_a_running_loop(tmp_path, stub):
    texts = []

    async def main():
        generator = EngineClient(CFG, tmp_path, tmp_path, standalone=True)
        texts.append((await generator.generate(request())).text)
        await generator.close()

    thread = threading.Thread(target=run, args=(main(),))
    thread.start()
    thread.join(20)
    assert texts == ["hi"]
    assert stub.engine.calls[:3] == ["probe at 1.0", "label 0", "sample g7s0"]


def test_the_death_of_the_engine_ends_every_wait_with_its_cause(generator, stub, tmp_path):
    async def main():
        await generator.load(UPDATE)
        (tmp_path / "engine.log").write_text("INFO fine\nRuntimeError: out of memory\nINFO bye\n")
        stub.engine.release.clear()
        waits = [asyncio.create_task(generator.generate(request(i))) for i in range(3)]
        waits.append(asyncio.create_task(generator.wait_dead()))
        await turns()
        os.kill(stub.engine.process.pid, signal.SIGKILL)
        ends = await asyncio.gather(*waits, return_exceptions=True)
        with pytest.raises(EngineError, match="signal 9"):
            await generator.generate(request())
        assert generator.pids() == ()
        await generator.close()
        return ends

    for end in run(main()):
        assert isinstance(end, EngineError)
        assert "was killed by signal 9" in str(end)
        assert str(end).endswith("engine.log: RuntimeError: out of memory")


def test_a_task_that_is_cancelled_as_the_engine_dies_stays_cancelled(generator, stub):
    async def main():
        await generator.load(UPDATE)
        stub.engine.release.clear()
        task = asyncio.create_task(generator.generate(request()))
        await turns()
        generator._life.fail("the engine died")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main(), generator)


def test_close_may_be_called_twice_and_before_start_and_ends_the_wait_for_death(generator, stub):
    async def main():
        dead = asyncio.create_task(generator.wait_dead())
        await generator.close()
        await generator.close()
        await dead
        with pytest.raises(EngineError, match="was closed"):
            await generator.generate(request())

    run(main())
    assert stub.count == 0


def test_close_ends_an_engine_that_is_still_starting_and_all_who_wait_for_it(generator, stub):
    stub.prepare = lambda engine: engine.opened.clear()

    async def main():
        starts = [asyncio.create_task(generator.start()) for _ in range(2)]
        await turns()
        assert stub.engine.process.poll() is None
        await generator.close()
        return await asyncio.gather(*starts, return_exceptions=True)

    assert [str(end) for end in run(main())] == ["the engine was closed"] * 2
    assert stub.engine.process.poll() == -signal.SIGKILL
    assert stub.count == 1


def test_a_caller_who_is_cancelled_leaves_the_start_to_the_others(generator, stub):
    stub.prepare = lambda engine: engine.opened.clear()

    async def main():
        first, second = (asyncio.create_task(generator.start()) for _ in range(2))
        await turns()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        stub.engine.opened.set()
        await second

    run(main(), generator)
    assert stub.count == 1


def test_two_engines_of_one_run_close_each_alone_and_leave_nothing(tmp_path, stub):
    async def main():
        one, other = (EngineClient(CFG, tmp_path, tmp_path) for _ in range(2))
        await one.load(UPDATE)
        first = stub.engine
        await other.load(UPDATE)
        folders = {engine.life.folder for engine in (first, stub.engine)}
        assert len(folders) == 2
        await one.close()
        assert first.process.poll() is not None
        assert stub.engine.process.poll() is None
        assert (await other.generate(request())).text == "hi"
        await other.close()
        return folders

    assert not any(folder.exists() for folder in run(main()))


def test_an_engine_whose_process_cannot_be_started_says_where_and_is_not_tried_again(tmp_path):
    (tmp_path / "file").touch()
    told = r"the engine process cannot be started: Not a directory: .*/file/engine-\w+; free space there or choose"

    async def main():
        generator = EngineClient(CFG, tmp_path, tmp_path / "file", log=tmp_path / "log")
        dead = asyncio.create_task(generator.wait_dead())
        for _ in range(2):
            with pytest.raises(EngineError, match=told):
                await generator.start()
        with pytest.raises(EngineError, match=told):
            await dead
        await generator.close()

    run(main())


def test_a_start_that_fails_is_not_tried_again(generator, stub):
    def prepare(engine):
        engine.open_error = RemoteFault("ValueError: head size 17")

    stub.prepare = prepare

    async def main():
        for _ in range(2):
            with pytest.raises(EngineError, match="start: ValueError: head size 17"):
                await generator.start()

    run(main(), generator)
    assert stub.count == 1


def test_the_probe_gives_one_number_for_each_token_but_the_first(generator):
    async def main():
        await generator.load(UPDATE)
        assert await generator.logprobs([1, 2, 3]) == [-1.0, -1.0]
        assert await generator.logprobs([1]) == []

    run(main(), generator)


def test_an_engine_that_does_not_answer_its_load_in_time_is_dead(generator, stub, monkeypatch):
    monkeypatch.setitem(client_module._DEADLINES_S, "replace_weights", 0.05)

    def prepare(engine):
        engine.replace_weights = lambda *given: asyncio.Event().wait()

    stub.prepare = prepare

    async def main():
        with pytest.raises(EngineError, match="the engine did not answer in time"):
            await generator.load(UPDATE)
        with pytest.raises(EngineError, match="the engine did not answer in time"):
            await generator.wait_dead()
        stub.engine.process.wait(20)

    run(main(), generator)
