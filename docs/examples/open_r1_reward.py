"""open-r1, as its reward function."""

import asyncio

from sandbox import Case, Client, Problem
from sandbox.rewards.extract import program_of_answer


def code_reward(completions, verification_info, **_):
    async def judged():
        async with Client("http://127.0.0.1:8080") as pool:
            return await asyncio.gather(
                *(reward(pool, *pair) for pair in zip(completions, verification_info, strict=True))
            )

    return asyncio.run(judged())


async def reward(pool, completion, info):
    tests = tuple(Case(test["input"], test["output"]) for test in info["test_cases"])
    done = await pool.judge(Problem("tests", "stdio", tests), program_of_answer(completion[0]["content"]))
    return float(done.verdict == "AC")
