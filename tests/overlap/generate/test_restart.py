"""An engine that comes up again, with doubles for engines, on a clock that jumps."""

import asyncio

import pytest
from mortal import Mortal, Nest, begun, closing, reload, request, turns, update

from overlap.clock import run_virtual as run
from overlap.errors import ClusterLost, ConfigError, EngineError, EngineLost
from overlap.generate import Engines


def test_requests_in_flight_at_a_death_are_sent_again_and_answered_under_the_weights_of_the_next_engine():
    nest = Nest()

    async def main():
        tasks = await begun(nest, 5)
        nest.last.die()
        late = nest.send()
        await reload(nest, 4)
        done = await asyncio.gather(*tasks, *late)
        await nest.steady.close()
        return done

    done = run(main())
    assert [t.id for t in done] == [f"g3s{i}" for i in (*range(5), 0)]
    assert {t.spans[0].version for t in done} == {4}
    assert (nest.steady.restarts, nest.steady.resent) == (1, 5)
    assert [e.closed > 0 for e in nest.engines] == [True, True]
    assert nest.told == [
        "engine 0 was killed by signal 9; another engine is started, 1 of 3 within 3600 s",
        "generation goes on, 21.0 s after the death of the engine",
    ]
    assert nest.watched == [1001]


def test_nothing_is_sent_to_an_engine_without_weights_and_weights_are_wanted_until_they_are_loaded():
    nest = Nest()

    async def main():
        (task,) = await begun(nest)
        wants = asyncio.create_task(nest.steady.wants_weights())
        await asyncio.sleep(100)
        assert not wants.done()
        nest.last.die()
        await wants
        assert asyncio.get_running_loop().time() == 20 + 100 + 1 + 20
        await nest.steady.wants_weights()
        await asyncio.sleep(100)
        assert not task.done()
        await nest.steady.load(update(1))
        await task
        wants = asyncio.create_task(nest.steady.wants_weights())
        await asyncio.sleep(100)
        assert not wants.done()
        wants.cancel()

    nest.run(main())


def test_a_load_whose_engine_dies_is_made_to_the_next_and_then_nobody_asks_for_weights():
    nest = Nest()

    async def main():
        await begun(nest)
        wants = asyncio.create_task(nest.steady.wants_weights())
        load = asyncio.create_task(nest.steady.load(update(1)))
        await turns()
        nest.last.die()
        await load
        await turns()
        assert (nest.last.number, nest.last.version, wants.done()) == (1, 1, False)
        wants.cancel()

    nest.run(main())


@pytest.mark.parametrize("seconds", [5, 50])
def test_a_load_that_is_cancelled_leaves_the_engine_asking_for_weights(seconds):
    nest = Nest()

    async def main():
        await begun(nest)
        load = asyncio.create_task(nest.steady.load(update(1)))
        await turns()
        nest.last.die()
        await asyncio.sleep(5)
        nest.last.release.clear()
        await asyncio.sleep(seconds - 5)
        load.cancel()
        await nest.steady.wants_weights()
        assert (nest.last.number, nest.last.version) == (1, None)

    nest.run(main())


@pytest.mark.parametrize("seconds", [0.5, 50])
def test_a_load_that_ends_well_after_the_death_of_its_engine_is_made_again(seconds):
    nest = Nest()

    async def main():
        (task,) = await begun(nest)
        nest.last.late = seconds
        load = asyncio.create_task(nest.steady.load(update(1)))
        await turns()
        nest.last.die()
        await load
        assert (nest.last.number, nest.last.version) == (1, 1)
        await task

    nest.run(main())


def test_too_many_deaths_within_a_while_end_everything_with_the_last_cause():
    nest = Nest(restarts=2, sends=9)

    async def main():
        (task,) = await begun(nest)
        for _ in range(2):
            nest.last.die()
            await reload(nest, 1)
            nest.last.release.clear()
        nest.last.die("ran out of memory")
        with pytest.raises(EngineError, match="3 deaths of the engine within 3600 s, the last one: engine 2 ran out"):
            await nest.steady.wait_dead()
        for end in (task, nest.steady.generate(request()), nest.steady.load(update(2)), nest.steady.wants_weights()):
            with pytest.raises(EngineError, match="the last one: engine 2 ran out of memory"):
                await end

    nest.run(main())
    assert len(nest.engines) == 3


@pytest.mark.parametrize(("back_off_s", "expected"), [(4.0, [4, 8, 4, 8]), (40.0, [40, 60, 40, 60])])
def test_deaths_long_ago_are_forgiven_and_each_restart_of_a_window_waits_twice_as_long(back_off_s, expected):
    nest = Nest(restarts=2, window_s=600.0, back_off_s=back_off_s)
    waits = []

    async def main():
        loop = asyncio.get_running_loop()
        await nest.steady.load(update(0))
        for pause in (0, 0, 700, 0):
            await asyncio.sleep(pause)
            nest.last.die()
            died = loop.time()
            await reload(nest, 1)
            waits.append(loop.time() - died - 20)

    nest.run(main())
    assert waits == expected


def test_a_start_that_fails_is_a_death_but_the_first_is_final():
    nest = Nest(broken={1: EngineError("no memory")})

    async def main():
        await begun(nest)
        nest.last.die()
        await reload(nest, 1)

    nest.run(main())
    assert nest.told[1] == "no memory; another engine is started, 2 of 3 within 3600 s"
    assert nest.watched == [1001, 1002]
    assert nest.steady.restarts == 1

    first = Nest(broken={0: ConfigError("run.device", "cuda", "use cpu")})

    async def refused():
        for _ in range(2):
            with pytest.raises(ConfigError, match="use cpu"):
                await first.steady.start()
        with pytest.raises(ConfigError, match="use cpu"):
            await first.steady.wait_dead()
        await first.steady.close()

    run(refused())
    assert len(first.engines) == 1


def test_a_fault_of_a_living_engine_is_raised_and_answered_by_no_other_engine():
    nest = Nest()

    async def main():
        await nest.steady.load(update(0))
        nest.last.fault = EngineError("a prompt of 16 tokens leaves no room")
        for call in (nest.steady.generate(request()), nest.steady.load(update(1))):
            with pytest.raises(EngineError, match="leaves no room"):
                await call

    nest.run(main())
    assert (len(nest.engines), nest.steady.resent) == (1, 0)


def test_a_fault_just_before_the_death_that_made_it_is_no_fault():
    nest = Nest()

    async def main():
        await nest.steady.load(update(0))
        nest.last.fault = EngineError("request g3s0: EngineGenerateError")
        asyncio.get_running_loop().call_later(0.2, nest.last.die)
        (task,) = nest.send()
        await reload(nest, 1)
        await task

    nest.run(main())


def test_an_engine_that_nobody_sends_weights_ends_everything():
    nest = Nest(weights_s=900.0)

    async def main():
        (task,) = await begun(nest)
        await asyncio.sleep(890)
        nest.last.die()
        with pytest.raises(EngineError, match="a new engine got no weights within 900 s"):
            await nest.steady.wait_dead()
        assert asyncio.get_running_loop().time() == 20 + 890 + 1 + 20 + 900
        task.cancel()

    nest.run(main())


def test_where_weights_go_through_a_common_group_a_death_is_final():
    nest = Nest()

    async def main():
        await nest.steady.load(update(0, "nccl"))
        nest.last.die()
        with pytest.raises(EngineError, match=r"engine 0 was killed .*; the learner's nccl group ended with it"):
            await nest.steady.wait_dead()

    nest.run(main())


def test_a_probe_whose_engine_dies_is_lost_and_waits_for_no_weights():
    nest = Nest()

    async def main():
        await nest.steady.load(update(0))
        assert await nest.steady.logprobs([1, 2]) == [0.0]
        nest.last.open.clear()
        probe = asyncio.create_task(nest.steady.logprobs([1, 2]))
        await turns()
        nest.last.die()
        with pytest.raises(EngineLost, match="probe: engine 0 was killed"):
            await probe
        with pytest.raises(EngineLost, match="the next one has no weights yet"):
            await nest.steady.logprobs([1, 2])
        await reload(nest, 1)
        assert await nest.steady.logprobs([1, 2]) == [1.0]
        nest.last.fault = EngineError("no such token")
        with pytest.raises(EngineError, match="no such token") as caught:
            await nest.steady.logprobs([1, 2])
        assert not isinstance(caught.value, EngineLost)

    nest.run(main())


def test_one_that_dies_in_its_sleep_leaves_the_device_to_the_learner_until_it_is_to_wake():
    nest = Nest(sleeps=True)

    async def main():
        await nest.steady.load(update(1, "ipc"))
        await nest.steady.sleep()
        nest.last.die()
        await asyncio.sleep(600)
        assert len(nest.engines) == 1
        await nest.steady.sleep()  # as the loop does before it wakes it
        await nest.steady.wake("weights")
        assert [engine.number for engine in nest.engines] == [0, 1]
        await nest.steady.load(update(2, "ipc"))
        await nest.steady.wake("cache")
        assert nest.last.sent == ["sleep", "wake weights", "wake cache"]
        (done,) = await asyncio.gather(*nest.send())
        assert done.spans[0].version == 2

    nest.run(main())


def test_a_death_in_sleep_that_is_the_last_to_be_borne_ends_it_at_once_and_close_waits_for_no_waking():
    for restarts, ended in ((0, True), (3, False)):
        nest = Nest(sleeps=True, restarts=restarts)

        async def main(nest=nest, ended=ended):
            await nest.steady.load(update(1, "ipc"))
            await nest.steady.sleep()
            nest.last.die()
            await asyncio.sleep(600)
            if ended:
                for call in (nest.steady.sleep(), nest.steady.wake("weights"), nest.steady.wait_dead()):
                    with pytest.raises(EngineError, match="1 deaths of the engine"):
                        await call
            await nest.steady.close()

        run(main())
        assert len(nest.engines) == 1


def test_close_ends_all_who_wait_at_any_moment():
    async def main(seconds):
        nest = Nest()
        tasks = await begun(nest, 2)
        nest.last.die()
        dead = asyncio.create_task(nest.steady.wait_dead())
        await asyncio.sleep(seconds)
        pids = nest.steady.pids()
        await nest.steady.close()
        await nest.steady.close()
        await dead
        assert nest.last.closed
        for task in tasks:
            with pytest.raises(EngineError, match="the engine was closed"):
                await task
        return pids

    assert [run(main(seconds)) for seconds in (0, 0.5, 5, 50)] == [(1000,), (1000,), (1001,), (1001,)]


def test_close_before_start_starts_nothing():
    nest = Nest()

    async def main():
        await nest.steady.close()
        with pytest.raises(EngineError, match="was closed"):
            await nest.steady.generate(request())

    run(main())
    assert len(nest.engines) == 1


def test_where_the_cluster_is_lost_no_other_engine_is_started():
    nest = Nest()

    async def main():
        await nest.steady.load(update(0))
        nest.last.die()
        nest.last._cause = ClusterLost("the cluster is lost")
        with pytest.raises(ClusterLost, match="the cluster is lost"):
            await nest.steady.wait_dead()

    nest.run(main())
    assert len(nest.engines) == 1


def test_one_that_serves_its_own_weights_answers_again_when_the_next_engine_is_up_and_asks_nobody_for_any():
    nest = Nest(serving=True)

    async def main():
        nest.opens()
        tasks = nest.send(2)
        await asyncio.sleep(30)
        nest.last.release.clear()
        tasks += nest.send(2)
        await turns()
        nest.opens()
        nest.last.die()
        await asyncio.gather(*tasks)
        wants = asyncio.create_task(nest.steady.wants_weights())
        await turns()
        assert not wants.done()
        wants.cancel()

    nest.run(main())
    assert (len(nest.engines), nest.steady.restarts, nest.steady.resent) == (2, 1, 2)
    assert nest.told[-1].startswith("generation goes on")


def test_without_a_policy_the_first_death_is_final_and_raised_as_it_is():
    engine = Mortal(0)
    door = Engines([lambda: engine], policy=None, serving=True)

    async def main():
        task = asyncio.create_task(door.generate(request()))
        await asyncio.sleep(30)
        engine.die()
        for wait in (task, door.wait_dead(), door.generate(request())):
            with pytest.raises(EngineError, match=r"^engine 0 was killed by signal 9$"):
                await wait

    run(closing(door, main()))
