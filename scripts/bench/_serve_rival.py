"""A server that starts an interpreter per request, with a time limit and nothing else; it speaks `/judge` as ours."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from sandbox.serve.listening import bind

_at_once = asyncio.Semaphore(os.cpu_count() or 1)


async def judge(request: Request) -> JSONResponse:
    """Run the program once per case, and compare its output."""
    body = json.loads(await request.body())
    passed = 0
    cases = body["problem"]["cases"]
    async with _at_once:
        for case in cases:
            with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
                file.write(body["program"]["source"])
                file.flush()
                pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
                process = await asyncio.create_subprocess_exec(sys.executable, file.name, **pipes)
                output, _ = await asyncio.wait_for(process.communicate(case["input"].encode()), 10)
            passed += process.returncode == 0 and output.split() == case["expected"].encode().split()
    found = {"problem_id": body["problem"]["id"], "verdict": "AC" if passed == len(cases) else "WA", "cases": []}
    rest = {"weak": False, "tier": "none", "language": "python", "toolchain": "", "compile_log": ""}
    return JSONResponse(found | rest | {"passed": passed, "total": len(cases), "queue_s": 0.0, "run_s": 1e-9})


async def version(request: Request) -> JSONResponse:
    """What the client asks for first."""
    return JSONResponse({"workers": os.cpu_count(), "bounds": {"body_bytes": 1 << 20}})


def main() -> None:
    """Serve until a signal comes."""
    listener = bind("127.0.0.1", 0)
    routes = [Route("/judge", judge, methods=["POST"]), Route("/version", version), Route("/health", version)]
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="critical", access_log=False)).run([listener])


if __name__ == "__main__":
    main()
