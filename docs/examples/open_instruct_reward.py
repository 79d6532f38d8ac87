"""open-instruct, `CODE_API_URL=http://HOST:9000/test_program`."""

from fastapi import FastAPI

from sandbox import Case, Client, Limits, Problem

app, pool = FastAPI(), Client("http://127.0.0.1:8080")


@app.post("/test_program")
async def test_program(body: dict):
    limits = Limits(cpu_s=body.get("max_execution_time", 1.0))
    problem = Problem("tests", "assert", tuple(map(Case, body["tests"])), limits=limits)
    done = await pool.judge(problem, body["program"], stop_at_first_failure=False)
    times = {case.index: case.wall_s for case in done.cases if case.verdict == "AC"}
    tests = range(len(body["tests"]))
    return {"results": [int(n in times) for n in tests], "runtimes": [times.get(n, -1.0) for n in tests]}
