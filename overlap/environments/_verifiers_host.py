"""Rolls out environments of the package ``verifiers``, in an interpreter that has it: started as a program.

    python _verifiers_host.py rows NAME OPTIONS     prints the rows as JSON, and ends
    python _verifiers_host.py serve NAME OPTIONS    reads requests from stdin, a line of JSON each, answers on stdout

    {"id": 1, "row": {...}, "url": URL, "key": KEY}  ──▶  {"id": 1, "reward": 1.0, "metrics": {...}, "said": "8"}
    {"cancel": 1}                                         {"id": 1, "fault": "SandboxError: ..."}

``NAME`` is a v1 taskset or a v0 environment that is installed there, or a module of the working directory. Standard
library and ``verifiers`` only.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import types
from typing import Any

POLICYS = {"EmptyModelResponseError", "InvalidModelResponseError", "OverlongPromptError", "ToolParseError"}
"""Errors that the policy's own answers cause: the environment's reward stands."""
MODEL = "policy"


class Classic:
    """A v0 environment: ``load_environment`` of its module."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        import verifiers as vf

        self.env = vf.load_environment(name, **options.get("args", {}))

    def rows(self, count: int, heldout: int) -> list[dict[str, Any]]:
        own = self.env.eval_dataset is not None or getattr(self.env, "eval_dataset_source", None) is not None
        data = self.env.get_dataset(n=count if own else count + heldout)
        found = [dict(row) for row in data]
        if heldout and own:
            found = found[:count] if count > 0 else found
            return [{"row": row} for row in found] + [
                {"row": dict(row), "heldout": True} for row in self.env.get_eval_dataset(n=heldout)
            ]
        return [{"row": row} for row in found]

    @staticmethod
    def messages(row: dict[str, Any]) -> Any:
        return row["prompt"]

    async def roll(self, row: dict[str, Any], url: str, variable: str) -> dict[str, Any]:
        import verifiers as vf

        client = vf.ClientConfig(api_base_url=url, api_key_var=variable, max_retries=2)
        made = await self.env.run_rollout(row, client, MODEL, {})
        error = made.get("error")
        if error and str(error.get("error", "")) not in POLICYS:
            return {"fault": f"{error.get('error')}: {error.get('error_chain_repr') or error.get('error_chain_str')}"}
        said = made.get("completion") or []
        last = said[-1] if isinstance(said, list) and said else {}
        text = last.get("content") if isinstance(last, dict) else getattr(last, "content", "")
        return {"reward": made["reward"], "metrics": dict(made.get("metrics") or {}), "said": _text(text)}


class Taskset:
    """A v1 taskset, played by one agent in its harness."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        import verifiers.v1 as vf
        from verifiers.v1.utils.generic import concrete_type
        from verifiers.v1.utils.loaders import environment_class, load_environment

        kind = environment_class(name)
        config = concrete_type(kind, vf.EnvConfig, origin=vf.Env) or vf.EnvConfig
        given = dict(options.get("env", {}))
        if issubclass(kind, vf.SingleAgentEnv):
            agent = {
                "harness": {"id": options.get("harness") or _add_chat_harness()},
                "runtime": {"type": "subprocess"},
            }
            given["agent"] = {**agent, **given.get("agent", {})}
        given["taskset"] = {**options.get("args", {}), "id": name}
        self.env, self.vf = load_environment(config.model_validate(given)), vf
        self.kind = type(self.env.taskset).task_type()
        self._serving: Any = None

    def rows(self, count: int, heldout: int) -> list[dict[str, Any]]:
        if self.env.taskset.INFINITE and count <= 0:
            raise ValueError("this taskset has no end: say how many tasks to take (data.options.count)")
        tasks = itertools.islice(self.env.taskset, count + heldout if count > 0 else None)
        return [{"row": task.data.model_dump(mode="json")} for task in tasks]

    @staticmethod
    def messages(row: dict[str, Any]) -> Any:
        system = [{"role": "system", "content": row["system_prompt"]}] if row.get("system_prompt") else []
        prompt = row.get("prompt") or ""
        return [*system, *([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)]

    async def roll(self, row: dict[str, Any], url: str, variable: str) -> dict[str, Any]:
        if self._serving is None:
            self._serving = asyncio.ensure_future(self._serve())
        await asyncio.shield(self._serving)
        vf = self.vf
        task = self.kind(self.kind.data_type().model_validate(row), self.env.config.taskset.task)
        client = vf.EvalClientConfig(base_url=url, api_key_var=variable)
        context = vf.ModelContext(client=client, model=MODEL, sampling=vf.SamplingConfig())
        (slot,) = self.env.slots(task)
        episode = await self.env.run_slot(slot, context)
        errors = [error for one in (episode, *episode.traces) for error in one.errors]
        if not episode.ok and not all(error.type in POLICYS for error in errors):
            last = errors[-1] if errors else None
            return {"fault": f"{last.type}: {last.message}" if last else "the episode failed, without an error"}
        (trace, *_) = [one for one in episode.traces if one.agent.name in ("", "agent")] or episode.traces
        metrics = {name: value for name, value in trace.metrics.items() if isinstance(value, int | float)}
        return {"reward": trace.reward, "metrics": metrics, "said": trace.last_reply}

    async def _serve(self) -> None:
        await self.env.serving().__aenter__()  # to the end of this process


def _add_chat_harness() -> str:
    """Make known a harness that only talks, as verifiers' ``null`` does, and needs no package index: a dialog without
    tools in this process, one with tools by the program of ``null`` in this interpreter. Returns its id.
    """
    from openai import AsyncOpenAI
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.harnesses.null import NullHarness, program
    from verifiers.v1.runtimes import ProgramResult

    class ChatHarness(NullHarness):
        async def setup(self, runtime: Any) -> None:
            async def prepared(*_: Any, **__: Any) -> list[str]:
                return [sys.executable, str(program.__file__)]

            runtime.prepare_uv_script = prepared

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
        ) -> Any:
            if mcp_urls:
                return await super().launch(ctx, trace, runtime, endpoint, secret, mcp_urls, data)
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


def load(name: str, options: dict[str, Any]) -> Any:
    """The environment; a v1 taskset where the module has one."""
    sys.path.append(os.getcwd())
    try:
        from verifiers.v1.utils.loaders import taskset_class
    except ImportError as error:
        if error.name == "verifiers":
            raise
        return Classic(name, options)  # an earlier verifiers
    try:
        taskset_class(name)
    except (AttributeError, TypeError):
        return Classic(name, options)
    return Taskset(name, options)


def _text(content: Any) -> str:
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) else vars(part) for part in content]
        return "".join(str(part.get("text", "")) for part in parts)
    return str(content or "")


def print_rows(env: Any, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Each row with what the policy is asked, as a list of messages."""
    found: list[dict[str, Any]] = env.rows(int(options.get("count", 0)) or -1, int(options.get("heldout", 0)))
    for one in found:
        asked = env.messages(one["row"])
        asked = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        asked = [message if isinstance(message, dict) else message.model_dump() for message in asked]
        one["messages"] = [{"role": part["role"], "content": _text(part["content"])} for part in asked]
    return found


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
            found = await env.roll(asked["row"], asked["url"], variable)
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


def main() -> None:
    what, name, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what an environment prints is no answer
    env = load(name, options)
    if what == "rows":
        json.dump(print_rows(env, options), out, default=str)
        out.flush()
        return
    out.write(json.dumps({"ready": type(env).__name__}) + "\n")
    out.flush()
    asyncio.run(answer_requests(env, out))
    os._exit(0)  # threads of an environment do not hold it up


if __name__ == "__main__":
    main()
