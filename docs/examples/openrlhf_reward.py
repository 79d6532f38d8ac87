"""OpenRLHF, `--reward.remote_url http://HOST:9000/get_reward`."""

import asyncio

from fastapi import FastAPI

from sandbox import Client
from sandbox.rewards.extract import answer_behind, program_of_answer
from sandbox.rewards.ground_truth import problem_of

app, pool = FastAPI(), Client("http://127.0.0.1:8080")


async def reward(query: str, prompt: str, label: str) -> float:
    program = program_of_answer(answer_behind(query, prompt) or "")
    return float((await pool.judge(problem_of(label), program)).verdict == "AC")


@app.post("/get_reward")
async def get_reward(body: dict):
    found = await asyncio.gather(*map(reward, body["query"], body["prompts"], body["labels"]))
    return {"rewards": found if len(found) > 1 else found[0], "scores": found, "extra_logs": {}}
