"""Episodes behind the engine's door: how they end, what comes back of them, and who has a place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from chats import EPISODES, Letters, Voice, never, one, prompt, rolling, user
from gateways import TOOLS

from overlap.config.rollout import EpisodeConfig, RolloutConfig
from overlap.core import Prompt, Request, Spoken, Trajectory
from overlap.core.clock import now
from overlap.core.errors import EpisodeOver
from overlap.server.chat import Chat
from overlap.server.episodes import EpisodeSandbox, episodes
from overlap.server.template import ChatTemplate
from sandbox.core.nouns import Case, Program
from sandbox.core.problem import Problem
from sandbox.errors import WorkerDied

PROBLEM = Problem("public", "stdio", (Case("1", "1"),))


async def two_turns(prompt: Any, chat: Chat, sandbox: EpisodeSandbox) -> str:
    first = await chat.say([user(prompt.data)])
    second = await chat.say([user(prompt.data), first.message, user("and?")])
    return f"{first.text} {second.text}"


def test_an_episode_comes_back_as_one_trajectory_with_a_mask() -> None:
    voice = Voice(lambda request: (f"a{request.turn}", "stop"))
    made = one(two_turns, voice=voice)
    assert (made.id, made.text, made.finish, made.turns) == ("g4s2", "a1 a2", "stop", 2)
    assert [request.id for request in voice.seen] == ["g4s2t1", "g4s2t2"]
    assert Letters().decode(made.prompt_ids) == "<|im_start|>user\nask<|im_end|>\n<|im_start|>assistant\n"
    assert sum(made.mask) == made.sampled == 6
    assert not made.mask[3]
    assert made.mask[-3:] == b"\1\1\1"
    assert made.forks == ()
    assert sum(span.end - span.start for span in made.spans) == 6


def test_the_beginning_of_a_response_is_sampled_without_an_episode() -> None:
    """As the check of the first version wants it, before which nothing else is done."""

    async def rollout(prompt: Any, chat: Chat, sandbox: EpisodeSandbox) -> str:
        raise AssertionError("an episode was rolled out")

    voice = Voice(lambda request: ("ab", "stop"))
    asked = Request(-1, 0, Prompt("p", (5, 6)), max_tokens=256)
    made = asyncio.run(rolling(rollout, voice).generate(asked))
    assert (made.request, voice.seen) == (asked, [asked])


@pytest.mark.promise("exact-tokens")
def test_what_was_left_comes_back_as_forks_and_every_token_counts_once() -> None:
    async def rollout(prompt: Any, chat: Chat, sandbox: EpisodeSandbox) -> str:
        for text in ("a", "b"):
            await chat.say([user(text)])
        return (await chat.say([user("c")])).text

    made = one(rollout, voice=Voice(lambda request: ("x" * request.turn, "stop")))
    assert [branch.trained or len(branch.token_ids) for branch in made.branches] == [4, 2, 3]
    assert made.sampled == 9
    assert [branch.text for branch in made.branches] == ["xxx", "", ""]


CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "offered", "parser", "unread"),
    [
        (CALL, TOOLS, "", True),
        (CALL, TOOLS, "unfit", True),
        (CALL, TOOLS, "fit", False),
        (CALL, (), "", False),
        ('{"name": "f", "parameters": {"x": 1}}', TOOLS, "", True),
        ('{"name": "g", "parameters": {"x": 1}}', TOOLS, "", False),
        ("[f(x=1)]", TOOLS, "", True),
        ("print(f(x=1))", TOOLS, "", False),
        ("<function=f>\n</function>", TOOLS, "", True),
        ("functions.f:0", TOOLS, "", True),
        ("I would call f.", TOOLS, "", False),
    ],
)
def test_an_answer_with_a_call_that_nothing_reads_is_counted_and_the_first_is_told(
    text: str, offered: Any, parser: str, unread: bool
) -> None:
    class Parsing(Voice):
        async def parse(self, text: str, token_ids: Any, tools: str) -> Spoken:
            return Spoken("", calls=(("f", "{}"),)) if parser == "fit" else Spoken(text)

    async def rollout(prompt: Any, chat: Chat, sandbox: EpisodeSandbox) -> str:
        for _ in range(2):
            await chat.say([user("x")], tools=offered)
        return "done"

    told = list[str]()
    cfg = replace(EPISODES, episode=EpisodeConfig(tokens=2000, tool_parser=parser))
    voice = Parsing(lambda request: (text, "stop"))
    engine = episodes(cfg, voice, ChatTemplate(Letters()), rollout, "Mine.rollout", never, tell=told.append)
    made = asyncio.run(engine.generate(Request(4, 2, prompt())))
    assert made.used.unread == 2 * unread
    assert [line.partition(", and ")[0] for line in told] == ["an answer holds what looks like a tool call"] * unread


@pytest.mark.promise("harnesses")
@pytest.mark.parametrize("caught", [True, False])
def test_a_budget_truncates_whether_the_task_catches_it_or_not(caught: bool) -> None:
    async def rollout(prompt: Any, chat: Chat, sandbox: EpisodeSandbox) -> str:
        try:
            while True:
                await chat.say([user("again")])
        except EpisodeOver:
            if caught:
                return "i give up"
            raise

    made = one(rollout, cfg=replace(EPISODES, episode=EpisodeConfig(tokens=2000, turns=3)))
    assert (made.finish, made.turns, made.text) == ("length", 1, "yes")
    assert len(made.forks) == 2
    assert made.used is not None
    assert not made.used.out_of_time


@pytest.mark.virtual
async def test_time_truncates_and_takes_the_turn_in_flight_back() -> None:
    class Slow(Voice):
        left = 0

        async def generate(self, request: Request) -> Trajectory:
            try:
                await asyncio.sleep(400.0)
            except asyncio.CancelledError:
                self.left += 1
                raise
            return await super().generate(request)

    voice, began = Slow(), now()
    made = await rolling(two_turns, voice).generate(Request(0, 0, prompt()))
    assert now() - began == pytest.approx(600.0)
    assert (made.finish, made.text, voice.left) == ("length", "yes", 1)
    assert made.used is not None
    assert made.used.out_of_time


@pytest.mark.virtual
async def test_the_time_in_which_the_engine_sleeps_is_none_of_the_episodes() -> None:
    class Sleeping(Voice):
        def __init__(self) -> None:
            super().__init__()
            self.awake, self.told = asyncio.Event(), list[str]()

        async def sleep(self) -> None:
            self.told.append("sleep")
            self.awake.clear()

        async def wake(self, part: str) -> None:
            self.told.append(part)
            if part == "cache":
                self.awake.set()

        async def generate(self, request: Request) -> Trajectory:
            await self.awake.wait()
            await asyncio.sleep(250.0)
            await self.awake.wait()
            return await super().generate(request)

    voice = Sleeping()
    voice.awake.set()
    door, began = rolling(two_turns, voice), now()
    task = asyncio.create_task(door.generate(Request(0, 0, prompt())))
    await asyncio.sleep(240.0)
    await door.sleep()
    await asyncio.sleep(1000.0)
    await door.wake("weights")
    await asyncio.sleep(1000.0)
    await door.wake("cache")
    made = await task
    assert (made.finish, now() - began, voice.told) == ("stop", pytest.approx(2490.0), ["sleep", "weights", "cache"])
    assert made.used is not None
    assert not made.used.out_of_time


@pytest.mark.promise("our-faults")
def test_a_fault_of_the_sandbox_has_the_episode_rolled_out_again_and_then_masks_it() -> None:
    async def rollout(prompt: Any, chat: Chat, sandbox: EpisodeSandbox) -> str:
        await chat.say([user(prompt.data)])
        await sandbox.run(PROBLEM, Program("print(1)"))
        return "done"

    def judging(faults: int) -> Callable[..., Awaitable[Any]]:
        asked: list[int] = []

        async def judge(problem: Problem, program: Program, turn: int) -> Any:
            asked.append(turn)
            if len(asked) <= faults:
                raise WorkerDied("it was killed")
            assert set(asked) == {4}

        return judge

    assert one(rollout, judge=judging(1)).text == "done"
    failed = one(rollout, judge=judging(2))
    assert (failed.finish, failed.failure) == ("abort", "WorkerDied: it was killed")


@pytest.mark.virtual
async def test_as_many_episodes_as_the_engine_has_places_are_rolled_out_at_once_the_oldest_first() -> None:
    inside, order = 0, []

    async def rollout(prompt: Any, chat: Chat, sandbox: EpisodeSandbox) -> str:
        nonlocal inside
        messages = [user(prompt.data)]
        for _ in range(3):
            messages = [*messages, (await chat.say(messages)).message, user("?")]
            await asyncio.sleep(1.0)  # it keeps its place
        return ""

    class Counted(Voice):
        async def generate(self, request: Request) -> Trajectory:
            nonlocal inside
            inside += 1
            order.append(request.group)
            assert inside <= 2
            await asyncio.sleep(1.0)
            inside -= 1
            return await super().generate(request)

    engine = rolling(rollout, Counted(), replace(EPISODES, rollout=RolloutConfig(max_sequences=2)))
    await asyncio.gather(*(engine.generate(Request(group, 0, prompt())) for group in (0, 3, 2, 1)))
    assert order == [*[0, 3] * 3, *[1, 2] * 3]


@pytest.mark.virtual
async def test_an_episode_that_is_idle_for_too_long_gives_its_place_to_another_and_waits_for_one_again() -> None:
    said: list[tuple[int, float]] = []
    began = now()

    async def rollout(prompt: Any, chat: Chat, sandbox: EpisodeSandbox) -> str:
        first = await chat.say([user("a")])
        await asyncio.sleep(100.0 if prompt.id == "slow" else 0.0)
        await chat.say([user("a"), first.message, user("b")])
        return ""

    class Timed(Voice):
        async def generate(self, request: Request) -> Trajectory:
            said.append((request.group, now() - began))
            await asyncio.sleep(10.0)
            return await super().generate(request)

    engine = rolling(rollout, Timed(), replace(EPISODES, rollout=RolloutConfig(max_sequences=1)))
    asked = [Request(0, 0, prompt("slow")), Request(1, 0, prompt("quick"))]
    await asyncio.gather(*map(engine.generate, asked))
    assert said == [(0, 0.0), (1, 15.0), (1, 25.0), (0, 110.0)]
