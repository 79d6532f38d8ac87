"""slime and miles, `--rm-type remote_rm --rm-url http://HOST:9000/remote_rm`."""

from fastapi import FastAPI

from sandbox import Client
from sandbox.rewards.extract import program_of_answer
from sandbox.rewards.ground_truth import problem_of

app, pool = FastAPI(), Client("http://127.0.0.1:8080")


@app.post("/remote_rm")
async def remote_rm(sample: dict) -> float:
    done = await pool.judge(problem_of(sample["label"]), program_of_answer(sample["response"]))
    return float(done.verdict == "AC")
