"""Several engines behind one door: requests, weights and episodes, with doubles for engines, on a clock that jumps."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from flocks import request, update, with_flock
from mortal import turns

from overlap.core import WeightUpdate
from overlap.core.errors import EngineError, EngineLost


@pytest.mark.promise("gate")
@with_flock(3)
async def test_no_request_is_sent_before_every_engine_has_the_version(flock):
    tasks = flock.send((0,), (1,), (2,))
    load = asyncio.create_task(flock.door.load(update(0)))
    await asyncio.sleep(30)  # they start within 20 s
    assert load.done()
    for version in (1, 2):
        slow = flock.engine(version)
        slow.release.clear()
        load = asyncio.create_task(flock.door.load(update(version)))
        await asyncio.sleep(30)
        assert [life[0].version for life in flock.lives].count(version) == 2
        before = flock.sent
        tasks += flock.send((3,), (4,), (5,))
        await asyncio.sleep(30)
        assert (flock.sent, load.done()) == (before, False)
        slow.release.set()
        await load
        await asyncio.gather(*tasks)
    done = await asyncio.gather(*tasks)
    await flock.door.close()
    assert [t.spans[0].version for t in done] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.promise("replicas")
@with_flock(2)
async def test_a_group_stays_together_and_goes_where_the_fewest_requests_are(flock):
    await flock.door.load(update(0))
    flock.hold()
    tasks = flock.send((0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (0, 3), (3, 0), (3, 1), (1, 1))
    await turns()
    assert flock.sent == [["g0s0", "g0s1", "g0s2", "g0s3"], ["g1s0", "g2s0", "g3s0", "g3s1", "g1s1"]]
    flock.engine(0).release.set()
    await asyncio.gather(*(t for t in tasks if t.done()), return_exceptions=True)
    await turns()
    tasks += flock.send((0, 4), (4, 0))
    await turns()
    assert flock.sent[0][-2:] == ["g0s4", "g4s0"]
    flock.engine(1).release.set()
    await asyncio.gather(*tasks)
    assert (flock.door._routing.homes, flock.door._routing.members) == ({}, {})


@with_flock(2)
async def test_a_request_does_not_wait_for_an_engine_of_whose_death_nobody_has_been_told(flock):
    loop = asyncio.get_running_loop()
    await flock.door.load(update(0))
    flock.engine(0).die()
    await turns()
    died, (task,) = loop.time(), flock.send((0,))
    await task
    assert (flock.sent, loop.time()) == ([[], ["g0s0"]], died)


@with_flock(2)
async def test_requests_wait_where_no_engine_is_left_and_are_answered_by_the_first_that_has_weights_again(flock):
    await flock.door.load(update(0))
    flock.hold()
    tasks = flock.send((0,), (1,))
    await turns()
    for index in range(2):
        flock.engine(index).die()
    await asyncio.sleep(100)
    assert not any(task.done() for task in tasks)
    probe = asyncio.create_task(flock.door.logprobs([1, 2]))
    with pytest.raises(EngineLost, match="no engine is left"):
        await probe
    await flock.door.load(update(0))
    await asyncio.gather(*tasks)
    flock.hold()
    load = asyncio.create_task(flock.door.load(update(1)))
    await turns()
    probe = asyncio.create_task(flock.door.logprobs([1, 2]))
    await asyncio.sleep(10)
    assert not probe.done()  # all are back: it waits for the weights
    for index in range(2):
        flock.engine(index).release.set()
    await load
    assert await probe == [1.0, 11.0]
    await flock.door.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@with_flock(2)
async def test_requests_of_an_engine_that_dies_go_to_another_at_once_and_the_next_one_gets_none_without_weights(
    flock,
):
    loop = asyncio.get_running_loop()
    await flock.door.load(update(0))
    flock.hold()
    tasks = flock.send(*((group, sample) for group in range(4) for sample in range(2)))
    wants = asyncio.create_task(flock.door.wants_weights())
    await turns()
    lost, died = list(flock.engine(1).sent), loop.time()
    assert len(lost) == 4
    flock.engine(1).die()
    await turns()
    assert flock.sent[0][4:] == lost
    assert loop.time() == died
    late = flock.send((9,))
    await wants
    assert flock.engine(1).number == 11
    await asyncio.sleep(100)
    late += flock.send((10,))
    await turns()
    assert flock.engine(1).sent == []
    await flock.door.load(update(0))  # the others have it
    late += flock.send((11,))
    await turns()
    assert flock.engine(1).sent == ["g11s0"]
    flock.engine(0).release.set()
    done = await asyncio.gather(*tasks, *late)
    await flock.door.close()
    assert {t.spans[0].version for t in done} == {0}
    assert flock.door.resent == 4
    assert flock.told == [
        "engine 10 was killed by signal 9; another engine is started, 1 of 3 within 3600 s",
        "an engine that had died serves again, after 121.0 s; the others went on",
    ]


@with_flock(4)
async def test_a_request_that_was_in_too_many_engines_when_they_died_fails_by_name(flock):
    await flock.door.load(update(0))
    flock.hold()
    (task,) = flock.send((0,))
    for index in range(3):
        await turns()
        assert [bool(ids) for ids in flock.sent] == [i <= index for i in range(4)]
        flock.engine(index).die()
    with pytest.raises(EngineError, match=r"request g0s0: 3 engines died with it, the last one so: .*engine 20 was"):
        await task


@with_flock(2, restarts=0)
async def test_the_end_of_one_engine_for_good_ends_all_who_wait_and_a_load_that_another_engine_still_makes(flock):
    early = flock.send((0,))
    await flock.door.start()
    flock.engine(0).release.clear()
    load = asyncio.create_task(flock.door.load(update(0)))
    await turns()
    flock.engine(1).die("ran out of memory")
    for end in (load, *early, flock.door.wants_weights()):
        with pytest.raises(EngineError, match=r"1 deaths of the engine .* engine 10 ran out of memory"):
            await end
    assert not flock.engine(0).closed


@with_flock(2)
async def test_an_engine_that_cannot_be_closed_is_told_when_all_are_closed(flock):
    await flock.door.start()
    assert flock.door.pids() == (1000, 1010)
    close = flock.engine(0).close

    async def closes():
        await close()
        raise EngineError("it does not end")

    flock.engine(0).close = closes
    with pytest.raises(EngineError, match="does not end"):
        await flock.door.close()
    flock.engine(0).close = close
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert all(life.closed for lives in flock.lives for life in lives)


@with_flock(2, sleeps=True)
async def test_all_sleep_and_wake_where_they_share_gpus_and_none_serves_before_it_has_weights_again(flock):
    await flock.door.load(update(1, "ipc"))
    await flock.door.sleep()
    assert flock.sent == [["sleep"], ["sleep"]]
    (task,) = flock.send((0,))
    await flock.door.wake("weights")
    await flock.door.wake("cache")
    await asyncio.sleep(10)
    assert flock.sent == [["sleep", "wake weights", "wake cache"]] * 2
    await flock.door.load(update(1, "ipc"))
    await task


def in_chunks(version, made, count=3):
    async def chunks():
        for number in range(count):
            made.append(number)
            yield {"number": number}

    return WeightUpdate(version, "ipc", {}, chunks)


@with_flock(2)
async def test_an_engine_that_dies_over_it_is_not_waited_for(flock):
    made = []
    await flock.door.start()
    flock.engine(1).release.clear()
    load = asyncio.create_task(flock.door.load(in_chunks(0, made)))
    await asyncio.sleep(10)
    assert made == []
    flock.engine(1).die()
    await load
    assert made == [0, 1, 2]
    assert flock.engine(0).version == 0
    again = in_chunks(0, made)
    await flock.door.wants_weights()
    await flock.door.load(again)
    assert made == [0, 1, 2] * 2
    assert flock.engine(1).chunks == [0, 1, 2]


@with_flock(2)
async def test_every_engine_is_probed_and_one_that_is_lost_is_left_out(flock):
    await flock.door.load(update(0))
    assert await flock.door.logprobs([1, 2]) == [0.0, 10.0]
    flock.engine(0).die()
    assert await flock.door.logprobs([1, 2]) == [10.0]
    flock.engine(1).die()
    for _ in range(2):
        with pytest.raises(EngineLost, match="no engine is left"):
            await flock.door.logprobs([1, 2])


@with_flock(2, sleeps=True)
async def test_what_slept_in_an_engine_that_died_is_begun_anew_once_and_what_slept_in_the_other_goes_on(flock):
    await flock.door.load(update(1, "ipc"))
    flock.hold()
    tasks = flock.send((0, 0), (1, 0), (0, 1), (1, 1), (0, 2))
    await turns()
    await flock.door.sleep()
    flock.engine(0).die()
    await turns()
    late = flock.send((2, 0))
    tasks[-1].cancel()  # while it waits for another engine
    await asyncio.sleep(600)
    assert flock.sent == [["g0s0", "g0s1", "g0s2", "sleep"], ["g1s0", "g1s1", "sleep"]]
    await flock.door.sleep()
    await flock.door.wake("weights")
    for index in range(2):
        flock.engine(index).release.set()
    await flock.door.load(update(2, "ipc"))
    await flock.door.wake("cache")
    done = await asyncio.gather(*tasks[:-1], *late)
    again = {t.request.id: t.spans[0].version for t in done if t.request.group != 1}
    assert again == {"g0s0": 2, "g0s1": 2, "g2s0": 2}
    sent = [id for ids in flock.sent for id in ids if id.startswith("g")]
    assert sorted(sent) == sorted(["g0s0", "g0s1", "g0s2", "g1s0", "g1s1", "g0s0", "g0s1", "g2s0"])
    assert flock.door.resent == 2


def turn_of(group: int, sample: int, turn: int):
    return replace(request(group, sample), turn=turn)


@with_flock(2)
async def test_an_episode_leaves_an_engine_that_has_a_queue(flock):
    await flock.door.load(update(0))
    await flock.door.generate(turn_of(0, 0, 1))
    flock.engine(0).release.clear()
    queue = [asyncio.create_task(flock.door.generate(turn_of(0, sample, 1))) for sample in (1, 2, 3)]
    await turns()
    assert len(flock.sent[0]) == 4, "its group stays there, up to the slack"
    await flock.door.generate(turn_of(0, 0, 2))
    assert flock.sent[1] == ["g0s0t2"]
    await flock.door.generate(turn_of(0, 0, 3))
    assert flock.sent[1] == ["g0s0t2", "g0s0t3"], "its past is there now"
    flock.engine(0).release.set()
    await asyncio.gather(*queue)
    assert flock.door.moved == 1


@with_flock(2)
async def test_after_a_load_an_episode_goes_where_the_fewest_requests_are(flock):
    await flock.door.load(update(0))
    await flock.door.generate(turn_of(0, 0, 1))
    await flock.door.load(update(1))
    flock.engine(0).release.clear()
    other = asyncio.create_task(flock.door.generate(turn_of(1, 0, 1)))
    await turns()
    await flock.door.generate(turn_of(0, 0, 2))
    assert flock.sent == [["g0s0t1", "g1s0t1"], ["g0s0t2"]]
    flock.engine(0).release.set()
    await other
    assert flock.door.moved == 0
