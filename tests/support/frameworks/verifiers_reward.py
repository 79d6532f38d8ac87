"""argv: a file with answers. Rewards and errors of rollouts of verifiers against an endpoint that gives the answers, as
JSON on the last line.
"""

import asyncio
import json
import os
import sys
import threading
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.harnesses.null import NullHarness
from verifiers.v1.runtimes import ProgramResult
from verifiers.v1.utils.loaders import load_environment

from sandbox.integrations.verifiers import JudgedData, JudgedTask

samples = json.loads(Path(sys.argv[1]).read_text())


class Samples(vf.Taskset[JudgedTask, vf.TasksetConfig]):
    def load(self):
        for index, sample in enumerate(samples):
            yield JudgedTask(JudgedData(idx=index, prompt=f"solve {index}", tests=sample["truth"]), self.config.task)


class AsksOnce(NullHarness):
    """One request, in this process: what verifiers' own harness starts a program for that it would install."""

    async def setup(self, runtime):
        pass

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            asked = [{"role": "user", "content": data.prompt}]
            await client.chat.completions.create(model=ctx.model, messages=asked)
        return ProgramResult(0, "", "")


class Endpoint(BaseHTTPRequestHandler):
    """An OpenAI endpoint whose model says the answer of the sample that it is asked to solve."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = samples[int(str(asked["messages"][-1]["content"]).split()[-1].strip("'}]"))]["answer"]
        message = {"role": "assistant", "content": answer}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        said = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "policy",
            "choices": [choice],
            "usage": usage,
        }
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


for name, kind in (("samples_set", Samples), ("asks_once", AsksOnce)):
    module = types.ModuleType(name)
    module.__dict__.update({kind.__name__: kind, "__all__": [kind.__name__]})
    sys.modules[name] = module


async def main(url):
    agent = {"harness": {"id": "asks_once"}, "runtime": {"type": "subprocess"}}
    env = load_environment(vf.SingleAgentEnvConfig.model_validate({"agent": agent, "taskset": {"id": "samples_set"}}))
    client = vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY")
    context = vf.ModelContext(client=client, model="policy", sampling=vf.SamplingConfig())
    os.environ["NO_KEY"] = "none"
    found = []
    async with env.serving():
        for task in env.taskset:
            (slot,) = env.slots(task)
            episode = await env.run_slot(slot, context)
            (trace,) = episode.traces
            errors = [f"{error.type}: {error.message}" for error in trace.errors]
            found.append((trace.reward if not errors else None, "; ".join(errors)))
    return found


server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
threading.Thread(target=server.serve_forever, daemon=True).start()
found = asyncio.run(main(f"http://127.0.0.1:{server.server_port}/v1"))
print(json.dumps({"rewards": [reward for reward, _ in found], "errors": [error for _, error in found]}))
