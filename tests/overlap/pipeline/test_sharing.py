"""The sequence where engine and learner share a device, on fakes that say what they do."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from fake_loops import LOOPS, components, config, run_loop
from fake_parts import FakeGenerator, FakeLearner

from overlap.core import WeightUpdate
from overlap.core.errors import EngineError, LearnerError, StageError
from overlap.pipeline.learning import StepResult
from overlap.pipeline.loop import serial


class Device:
    """What happened on it, in order. ``awake``: the parts of the engine that are on it."""

    def __init__(self, failing: Mapping[str, Exception] | None = None) -> None:
        self.seen, self.awake = list[str](), {"weights", "cache"}
        self._failing = dict(failing or {})

    def happens(self, what: str) -> None:
        if what in self._failing:
            raise self._failing[what]
        self.seen.append(what)


class SharingEngine(FakeGenerator):
    """Sleeps and wakes in parts; takes its weights in chunks."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    async def sleep(self) -> None:
        if self.device.awake:
            self.device.happens("sleep")
        self.device.awake.clear()
        self._open.clear()

    async def wake(self, part: str) -> None:
        self.device.happens(f"wake {part}")
        self.device.awake.add(part)
        if part == "cache":
            self._open.set()

    async def load(self, update: WeightUpdate) -> None:
        assert update.chunks is not None
        async for chunk in update.chunks():
            self.device.happens(f"chunk {chunk['number']}")
        await super().load(update)
        self._open.clear()

    async def logprobs(self, token_ids):  # type: ignore[no-untyped-def]
        assert "cache" in self.device.awake
        return await super().logprobs(token_ids)


class SharingLearner(FakeLearner):
    """Brings back what a call needs."""

    shares = True

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self.told: list[bool] = []

    async def step(self, batch):  # type: ignore[no-untyped-def]
        self.device.happens("learn")
        return await super().step(batch)

    async def publish(self, version: int) -> WeightUpdate:
        self.device.happens("publish")
        self.published.append(version)

        async def chunks():  # type: ignore[no-untyped-def]
            for number in range(2):
                yield {"number": number}

        return WeightUpdate(version, "ipc", {}, chunks)

    async def retire(self, update: WeightUpdate, *, loaded: bool = True) -> None:
        self.told.append(loaded)
        await super().retire(update)

    async def logprobs(self, token_ids):  # type: ignore[no-untyped-def]
        self.device.happens("learner's log-probs")
        return await super().logprobs(token_ids)

    async def sleep(self) -> None:
        self.device.happens("parameters leave")


def run(loop, device: Device, learner: SharingLearner | None = None) -> list[StepResult]:
    made = components(generator=SharingEngine(device), learner=learner or SharingLearner(device))
    return run_loop(loop, config(rollout__groups_per_step=2, run__steps=2), made)


SENT = ["wake weights", "publish", "chunk 0", "chunk 1"]
SERVES = ["parameters leave", "wake cache"]
STEP = ["sleep", "learn", *SENT, "learner's log-probs", *SERVES]


@pytest.mark.parametrize("loop", LOOPS)
def test_each_has_the_device_in_its_turn_and_the_cache_wakes_when_nothing_of_the_learner_is_left(loop) -> None:
    device = Device()
    results = run(loop, device, learner := SharingLearner(device))
    checked = ["sleep", *SENT, "learner's log-probs", *SERVES]
    assert device.seen == ["sleep", "parameters leave", *SENT, *SERVES, *checked, *STEP, *STEP]
    assert [r.parity for r in results] == [0.0, 0.0]
    assert learner.told == [True] * 4


PHASES = {
    "sleep": "putting the engine to sleep",
    "wake weights": "waking the engine's weights",
    "publish": "sending the weights",
    "chunk 1": "sending the weights",
    "learner's log-probs": "computing the learner's log-probs",
    "parameters leave": "the learner's parameters leave",
    "wake cache": "waking the KV cache",
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_failure_names_its_phase(loop, phase: str) -> None:
    learners = phase in ("publish", "learner's log-probs", "parameters leave")
    cause: Exception = LearnerError("no room") if learners else EngineError("no room")
    with pytest.raises(StageError, match=rf"version [01], while {PHASES[phase]}: \w+Error: no room") as caught:
        run(loop, Device({phase: cause}))
    assert type(caught.value.__cause__) is type(cause)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_engine_that_came_up_again_while_the_learner_learned_sleeps_before_its_weights_wake(loop) -> None:
    class Restarted(SharingLearner):
        async def step(self, batch):  # type: ignore[no-untyped-def]
            report = await super().step(batch)
            self.device.awake |= {"weights", "cache"}
            return report

    device = Device()
    run(loop, device, Restarted(device))
    first, second = STEP[:2], ["sleep", *STEP[2:]]
    assert device.seen[-2 * len(STEP) - 2 :] == [*first, *second] * 2


def test_weights_that_did_not_arrive_are_retired_as_such() -> None:
    learner = SharingLearner(device := Device({"chunk 1": EngineError("no room")}))
    with pytest.raises(StageError):
        run(serial, device, learner)
    assert learner.told == [False]
    assert "wake cache" not in device.seen
