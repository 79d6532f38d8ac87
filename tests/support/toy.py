"""A tiny task for end-to-end tests: random bytes of a random policy become programs with mixed verdicts."""

from __future__ import annotations

from overlap.task import Task, chat_prompt
from sandbox import Case, Problem, Program

PROBLEM = Problem(id="even", kind="stdio", cases=(Case("", "0\n"),))


class ToyTask(Task):
    """Solved when the answer has an even number of characters; the real sandbox runs a real program to tell."""

    def prompts(self, tokenizer, split):
        count = {"train": 8, "heldout": 2}[split]
        return [chat_prompt(tokenizer, f"{split}{i}", f"say {i}") for i in range(count)]

    def program(self, prompt, answer):
        return PROBLEM, Program(f"print({len(answer)} % 2)")

    def reward(self, prompt, answer, judgement):
        return float(judgement.verdict == "AC")


class ForkingToyTask(ToyTask):
    """Each episode has three branches: an answer that is asked for again, and one behind an edited history."""

    async def rollout(self, prompt, chat, sandbox):
        asked = [{"role": "user", "content": f"say {prompt.id}"}]
        await chat.say(asked)
        first = await chat.say(asked)
        await chat.say([*asked, first.message, {"role": "user", "content": "no"}])
        last = await chat.say([*asked, first.message, {"role": "user", "content": "and"}])
        return last.text
