"""Plays tasksets of the package ``verifiers``, in an interpreter that has it: started as a program.

    python _verifiers_host.py rows NAME OPTIONS     prints the rows as JSON, and ends
    python _verifiers_host.py serve NAME OPTIONS    reads requests from stdin, a line of JSON each, answers on stdout

    {"id": 1, "row": {...}, "url": URL, "key": KEY}  ──▶  {"id": 1, "reward": 1.0, "metrics": {...}, "said": "8"}
    {"cancel": 1}                                         {"id": 1, "fault": "SandboxError: ..."}

``NAME`` is a taskset that is installed there, or a module of the working directory. Standard library and ``verifiers``
only.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import traceback
import types
from importlib import metadata
from typing import Any

VERSIONS = ("0.3", "0.4")
MODEL = "policy"


class Taskset:
    """A taskset, played by one agent in its harness."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        import verifiers.v1 as vf
        from verifiers.v1.envs.single_agent import SingleAgentEnv
        from verifiers.v1.utils import loaders

        if hasattr(loaders.import_taskset(name), "load_environment"):
            raise SystemExit(f"{name} is an environment of verifiers' earlier API (load_environment), not a taskset")
        loaders.taskset_class(name)
        given = {**options["env"], "taskset": {**options["args"], "id": name}}
        kind = loaders.environment_class(name, given.get("id", ""))
        if not issubclass(kind, SingleAgentEnv):
            raise SystemExit(
                f"{name} is played by {kind.__name__}: only tasksets of one agent, as SingleAgentEnv plays"
            )
        agent = {"harness": {"id": options["harness"] or _add_chat_harness()}, "runtime": {"type": "subprocess"}}
        given["agent"] = {**agent, **given.get("agent", {})}
        self.env, self.vf = loaders.load_environment(_config_of(kind).model_validate(given)), vf
        self.kind = type(self.env.taskset).task_type()
        self._serving: Any = None

    def rows(self, count: int, heldout: int) -> list[dict[str, Any]]:
        """Each row with what the policy is asked, as a list of messages."""
        if self.env.taskset.INFINITE and not count:
            raise SystemExit("this taskset has no end: say how many tasks to take (data.options.count)")
        tasks = itertools.islice(self.env.taskset, count + heldout if count else None)
        rows = [task.data.model_dump(mode="json") for task in tasks]
        return [{"row": row, "messages": _messages(row)} for row in rows]

    async def play(self, row: dict[str, Any], url: str, variable: str) -> dict[str, Any]:
        if self._serving is None:
            self._serving = asyncio.ensure_future(self.env.serving().__aenter__())  # to the end of this process
        await asyncio.shield(self._serving)
        vf = self.vf
        task = self.kind(self.kind.data_type().model_validate(row), self.env.config.taskset.task)
        client = vf.EvalClientConfig(base_url=url, api_key_var=variable)
        context = vf.ModelContext(client=client, model=MODEL, sampling=vf.SamplingConfig())
        (slot,) = self.env.slots(task)
        episode = await self.env.run_slot(slot, context)
        if not episode.ok:
            errors = [error for one in (episode, *episode.traces) for error in one.errors]
            last = errors[-1] if errors else None
            return {"fault": f"{last.type}: {last.message}" if last else "the episode failed, without an error"}
        (trace,) = episode.traces
        metrics = {name: value for name, value in trace.metrics.items() if isinstance(value, int | float)}
        return {"reward": trace.reward, "metrics": metrics, "said": trace.last_reply}


def _config_of(kind: type) -> Any:
    from verifiers.v1.configs.env import EnvConfig
    from verifiers.v1.env import Env
    from verifiers.v1.utils.generic import concrete_type

    return concrete_type(kind, EnvConfig, origin=Env) or EnvConfig


def _messages(row: dict[str, Any]) -> list[dict[str, str]]:
    system = [{"role": "system", "content": row["system_prompt"]}] if row.get("system_prompt") else []
    prompt = row.get("prompt") or ""
    asked = [*system, *([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)]
    return [{"role": part["role"], "content": _text(part["content"])} for part in asked]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return str(content or "")


def _add_chat_harness() -> str:
    """Make known a harness that only talks, as verifiers' ``null`` does, and needs no package index: a dialog without
    tools in this process, one with tools by the program of ``null`` in this interpreter. Returns its id.
    """
    from openai import AsyncOpenAI
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.harnesses.null import NullHarness
    from verifiers.v1.runtimes import ProgramResult

    async def prepared(script: str, *_: Any, **__: Any) -> list[str]:
        return [sys.executable, "-c", script]

    class ChatHarness(NullHarness):
        async def setup(self, runtime: Any) -> None:
            runtime.prepare_uv_script = prepared

        async def launch(self, *given: Any, **named: Any) -> Any:
            ctx, _, _, endpoint, secret, mcp_urls, data = given[:7]
            if mcp_urls:
                return await super().launch(*given, **named)
            system, prompt = self.resolve_prompt(data)
            messages: list[Any] = [{"role": "system", "content": system}] if system else []
            said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []
            messages += [part if isinstance(part, dict) else message_to_wire(part) for part in said]
            async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None) as client:
                await client.chat.completions.create(model=ctx.model, messages=messages)
            return ProgramResult(0, "", "")

    name = "overlap_chat"
    module = types.ModuleType(name)
    module.__dict__.update(ChatHarness=ChatHarness, __all__=["ChatHarness"])
    sys.modules[name] = module
    return name


async def answer_requests(env: Any, out: Any) -> None:
    """Answer requests until stdin ends."""
    loop = asyncio.get_running_loop()
    running: dict[int, asyncio.Future[None]] = {}
    reader = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def answer(asked: dict[str, Any]) -> None:
        number, variable = asked["id"], f"OVERLAP_KEY_{asked['id']}"
        os.environ[variable] = asked["key"]
        try:
            found = await env.play(asked["row"], asked["url"], variable)
            line = json.dumps({"id": number, **found}, default=float)
        except asyncio.CancelledError:
            line = json.dumps({"id": number, "fault": "cancelled"})
        except (Exception, SystemExit) as error:  # it ends itself where a service of its own is not set up
            line = json.dumps({"id": number, "fault": f"{type(error).__name__}: {error}"})
        finally:
            del os.environ[variable], running[number]
        out.write(line + "\n")
        out.flush()

    while line := await reader.readline():
        asked = json.loads(line)
        if "cancel" in asked:
            if asked["cancel"] in running:
                running[asked["cancel"]].cancel()
        else:
            running[asked["id"]] = asyncio.ensure_future(answer(asked))


def check_version() -> None:
    """End with a line where the interpreter has no ``verifiers``, or one of another version."""
    try:
        found = metadata.version("verifiers")
    except metadata.PackageNotFoundError:
        raise SystemExit(f"{sys.executable} has no package verifiers") from None
    if ".".join(found.split(".")[:2]) not in VERSIONS:
        raise SystemExit(f"verifiers {found} is not supported: install one of {', '.join(VERSIONS)}")


def main() -> None:
    what, name, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what an environment prints is no answer
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [*(path for path in sys.path if os.path.abspath(path) != own), os.getcwd()]
    os.environ["PYTHONPATH"] = os.getcwd()  # of the tool servers, which are started by the module's name
    check_version()
    try:
        env = Taskset(name, options)
        rows = env.rows(options["count"], options["heldout"]) if what == "rows" else []
    except Exception as error:  # a taskset is a user's code
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())
        raise SystemExit(f"{type(error).__name__}: {said} ({where.filename}:{where.lineno})") from error
    json.dump(rows if what == "rows" else {"ready": name}, out, default=str)
    out.write("\n")
    out.flush()
    if what == "rows":
        return
    asyncio.run(answer_requests(env, out))
    os._exit(0)  # threads of an environment do not hold it up


if __name__ == "__main__":
    main()
