"""An engine that comes up again, with doubles for engines, on a clock that jumps."""

import asyncio

import pytest
from flocks import Flock, request, update, with_flock
from mortal import turns

from overlap.core.errors import ClusterLost, EngineError, EngineLost


@pytest.mark.promise("kills")
@with_flock()
async def test_requests_in_flight_at_a_death_are_sent_again_and_answered_under_the_weights_of_the_next_engine(flock):
    tasks = await flock.begun(5)
    flock.last.die()
    late = flock.send((3,))
    await flock.reload(4)
    done = await asyncio.gather(*tasks, *late)
    await flock.door.close()
    assert [t.id for t in done] == [f"g3s{i}" for i in (*range(5), 0)]
    assert {t.spans[0].version for t in done} == {4}
    assert (flock.door.restarts, flock.door.resent) == (1, 5)
    assert [e.closed > 0 for e in flock.lives[0]] == [True, True]
    assert flock.told == [
        "engine 0 was killed by signal 9; another engine is started, 1 of 3 within 3600 s",
        "generation goes on, 21.0 s after the death of the engine",
    ]
    assert flock.watched == [1001]
    assert flock.outages == [21.0]


@with_flock()
async def test_nothing_is_sent_to_an_engine_without_weights_and_weights_are_wanted_until_they_are_loaded(flock):
    (task,) = await flock.begun()
    wants = asyncio.create_task(flock.door.wants_weights())
    await asyncio.sleep(100)
    assert not wants.done()
    flock.last.die()
    await wants
    assert asyncio.get_running_loop().time() == 20 + 100 + 1 + 20
    await flock.door.wants_weights()
    await asyncio.sleep(100)
    assert not task.done()
    await flock.door.load(update(1))
    await task
    wants = asyncio.create_task(flock.door.wants_weights())
    await asyncio.sleep(100)
    assert not wants.done()
    wants.cancel()


@with_flock()
async def test_a_load_whose_engine_dies_is_made_to_the_next_and_then_nobody_asks_for_weights(flock):
    await flock.begun()
    wants = asyncio.create_task(flock.door.wants_weights())
    load = asyncio.create_task(flock.door.load(update(1)))
    await turns()
    flock.last.die()
    await load
    await turns()
    assert (flock.last.number, flock.last.version, wants.done()) == (1, 1, False)
    wants.cancel()


@pytest.mark.parametrize("seconds", [5, 50])
@with_flock()
async def test_a_load_that_is_cancelled_leaves_the_engine_asking_for_weights(flock, seconds):
    await flock.begun()
    load = asyncio.create_task(flock.door.load(update(1)))
    await turns()
    flock.last.die()
    await asyncio.sleep(5)
    flock.last.release.clear()
    await asyncio.sleep(seconds - 5)
    load.cancel()
    await flock.door.wants_weights()
    assert (flock.last.number, flock.last.version) == (1, None)


@pytest.mark.parametrize("seconds", [0.5, 50])
@with_flock()
async def test_a_load_that_ends_well_after_the_death_of_its_engine_is_made_again(flock, seconds):
    (task,) = await flock.begun()
    flock.last.late = seconds
    load = asyncio.create_task(flock.door.load(update(1)))
    await turns()
    flock.last.die()
    await load
    assert (flock.last.number, flock.last.version) == (1, 1)
    await task


@with_flock(restarts=2, sends=9)
async def test_too_many_deaths_within_a_while_end_everything_with_the_last_cause(flock):
    (task,) = await flock.begun()
    for _ in range(2):
        flock.last.die()
        await flock.reload(1)
        flock.last.release.clear()
    flock.last.die("ran out of memory")
    with pytest.raises(EngineError, match="3 deaths of the engine within 3600 s, the last one: engine 2 ran out"):
        await flock.door.wait_dead()
    for end in (task, flock.door.generate(request()), flock.door.load(update(2)), flock.door.wants_weights()):
        with pytest.raises(EngineError, match="the last one: engine 2 ran out of memory"):
            await end
    assert len(flock.lives[0]) == 3


@pytest.mark.parametrize(("back_off_s", "expected"), [(4.0, [4, 8, 4, 8]), (40.0, [40, 60, 40, 60])])
def test_deaths_long_ago_are_forgiven_and_each_restart_of_a_window_waits_twice_as_long(back_off_s, expected):
    flock = Flock(restarts=2, window_s=600.0, back_off_s=back_off_s)
    waits = []

    async def main():
        loop = asyncio.get_running_loop()
        await flock.door.load(update(0))
        for pause in (0, 0, 700, 0):
            await asyncio.sleep(pause)
            flock.last.die()
            died = loop.time()
            await flock.reload(1)
            waits.append(loop.time() - died - 20)

    flock.run(main())
    assert waits == expected


@with_flock(broken={1: EngineError("no memory")})
async def test_a_later_start_that_fails_is_a_death_and_the_outage_lasts_until_the_next_response(flock):
    (task,) = await flock.begun()
    flock.last.die()
    await flock.reload(1)
    await task
    await asyncio.gather(*flock.send((3, 0), (3, 1)))
    assert flock.outages == [1 + 20 + 2 + 20]
    assert flock.told[1] == "no memory; another engine is started, 2 of 3 within 3600 s"
    assert flock.watched == [1001, 1002]
    assert flock.door.restarts == 1


@with_flock()
async def test_a_fault_of_a_living_engine_is_raised_and_answered_by_no_other_engine(flock):
    await flock.door.load(update(0))
    flock.last.fault = EngineError("a prompt of 16 tokens leaves no room")
    for call in (flock.door.generate(request()), flock.door.load(update(1))):
        with pytest.raises(EngineError, match="leaves no room"):
            await call
    assert (len(flock.lives[0]), flock.door.resent) == (1, 0)


@with_flock()
async def test_a_fault_just_before_the_death_that_made_it_is_no_fault(flock):
    await flock.door.load(update(0))
    flock.last.fault = EngineError("request g3s0: EngineGenerateError")
    asyncio.get_running_loop().call_later(0.2, flock.last.die)
    (task,) = flock.send((3,))
    await flock.reload(1)
    await task


@with_flock()
async def test_a_probe_whose_engine_dies_is_lost_and_waits_for_no_weights(flock):
    await flock.door.load(update(0))
    assert await flock.door.logprobs([1, 2]) == [0.0]
    flock.last.open.clear()
    probe = asyncio.create_task(flock.door.logprobs([1, 2]))
    await turns()
    flock.last.die()
    with pytest.raises(EngineLost, match="probe: engine 0 was killed"):
        await probe
    with pytest.raises(EngineLost, match="the next one has no weights yet"):
        await flock.door.logprobs([1, 2])
    await flock.reload(1)
    assert await flock.door.logprobs([1, 2]) == [1.0]
    flock.last.fault = EngineError("no such token")
    with pytest.raises(EngineError, match="no such token") as caught:
        await flock.door.logprobs([1, 2])
    assert not isinstance(caught.value, EngineLost)


@with_flock(sleeps=True)
async def test_one_that_dies_in_its_sleep_leaves_the_device_to_the_learner_until_it_is_to_wake(flock):
    await flock.door.load(update(1, "ipc"))
    await flock.door.sleep()
    flock.last.die()
    await asyncio.sleep(600)
    assert len(flock.lives[0]) == 1
    await flock.door.sleep()  # as the loop does before it wakes it
    await flock.door.wake("weights")
    assert [engine.number for engine in flock.lives[0]] == [0, 1]
    await flock.door.load(update(2, "ipc"))
    await flock.door.wake("cache")
    assert flock.last.sent == ["sleep", "wake weights", "wake cache"]
    (done,) = await asyncio.gather(*flock.send((3,)))
    assert done.spans[0].version == 2


@pytest.mark.parametrize("restarts", [0, 3])
def test_a_death_in_sleep_that_is_the_last_to_be_borne_ends_it_at_once_and_close_waits_for_no_waking(restarts):
    flock = Flock(sleeps=True, restarts=restarts)

    async def main():
        await flock.door.load(update(1, "ipc"))
        await flock.door.sleep()
        flock.last.die()
        await asyncio.sleep(600)
        if not restarts:
            for call in (flock.door.sleep(), flock.door.wake("weights"), flock.door.wait_dead()):
                with pytest.raises(EngineError, match="1 deaths of the engine"):
                    await call

    flock.run(main())
    assert len(flock.lives[0]) == 1


@pytest.mark.parametrize(("seconds", "pid"), [(0, 1000), (0.5, 1000), (5, 1001), (50, 1001)])
@with_flock()
async def test_close_ends_all_who_wait_at_any_moment(flock, seconds, pid):
    tasks = await flock.begun(2)
    flock.last.die()
    dead = asyncio.create_task(flock.door.wait_dead())
    await asyncio.sleep(seconds)
    assert flock.door.pids() == (pid,)
    await flock.door.close()
    await flock.door.close()
    await dead
    assert flock.last.closed
    for task in tasks:
        with pytest.raises(EngineError, match="the engine was closed"):
            await task


@with_flock(serving=True)
async def test_one_that_serves_its_own_weights_answers_again_when_the_next_engine_is_up_and_asks_nobody_for_any(flock):
    tasks = flock.send((3, 0), (3, 1))
    await asyncio.sleep(30)
    flock.last.release.clear()
    tasks += flock.send((3, 0), (3, 1))
    await turns()
    flock.last.die()
    await asyncio.gather(*tasks)
    wants = asyncio.create_task(flock.door.wants_weights())
    await turns()
    assert not wants.done()
    wants.cancel()
    assert (len(flock.lives[0]), flock.door.restarts, flock.door.resent) == (2, 1, 2)
    assert flock.told[-1].startswith("generation goes on")


@pytest.mark.parametrize(
    ("backend", "cause", "told"),
    [
        ("nccl", EngineError("it was killed"), "it was killed; the learner's nccl group ended with it"),
        ("shm", ClusterLost("the cluster is lost"), "the cluster is lost"),
    ],
)
@with_flock()
async def test_where_no_other_engine_can_take_its_place_a_death_is_final(flock, backend, cause, told):
    await flock.door.load(update(0, backend))
    flock.last.die()
    flock.last._cause = cause
    with pytest.raises(type(cause), match=told):
        await flock.door.wait_dead()
    assert len(flock.lives[0]) == 1
