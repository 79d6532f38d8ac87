"""Clients of Piston, `http://HOST:9000/api/v2`."""

from fastapi import FastAPI

from sandbox import Client, Limits, Program

app, pool = FastAPI(), Client("http://127.0.0.1:8080")


@app.post("/api/v2/execute")
async def execute(body: dict):
    language = {"c++": "cpp", "js": "javascript"}.get(body["language"], body["language"])
    limits = Limits(cpu_s=body.get("run_timeout", 3000) / 1000)
    program = Program(body["files"][0]["content"], language)
    done = await pool.run(program, stdin=body.get("stdin", ""), arguments=body.get("args", []), limits=limits)
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace") or done.compile_log
    run = {"stdout": out, "stderr": err, "output": out + err, "code": done.exit_code, "signal": done.signal}
    return {"language": language, "version": done.toolchain, "run": run}
