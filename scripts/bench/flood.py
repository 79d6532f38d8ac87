"""The event loop of the gateway under a client that floods it, beside quiet episodes.

    flood    one episode sends REQUESTS messages of MEGABYTES at once    answers by status
    quiet    others hold short dialogs meanwhile                         s per turn, p99, beside what they take alone

The client is a process of its own. Bar: loop lag p99 under 50 ms, and the quiet episodes go on.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from _inputs import WIDE, free
from _shared import argument_parser

from overlap.core import Prompt, Request, Trajectory
from overlap.policy.resolve import resolve_policy
from overlap.record.looplag import LoopLag
from overlap.run.open_close import gc_frozen
from overlap.server.chat import Chat
from overlap.server.gateway import Gateway
from overlap.server.template import ChatTemplate

CLIENT = Path(__file__).with_name("_flood_client.py")
QUIET = 8
LIMIT_S = 1200


class Elsewhere:
    """In the place of an engine on a machine of its own: 0.1 s per answer."""

    async def generate(self, request: Request) -> Trajectory:
        began = time.monotonic()
        await asyncio.sleep(0.1)
        ids = (5, 6, 7)
        return Trajectory(request, ids, (-1.0,) * 3, "words", "length", (), began, time.monotonic())


def started(**how: Any) -> Any:
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    return asyncio.create_subprocess_exec(sys.executable, str(CLIENT), json.dumps(how), **pipes)


async def measured(template: ChatTemplate, context: int, requests: int, megabytes: float, text: str) -> str:
    """What the clients found, and the loop's lag."""
    async with asyncio.timeout(LIMIT_S), AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(Gateway())
        engine: Any = Elsewhere()
        template.context = context
        budget = replace(WIDE, turns=10**9, context=context)
        chats = [Chat(Request(n, 0, Prompt(f"p{n}", (1,))), engine, template, budget, free) for n in range(QUIET + 1)]
        keys = [stack.enter_context(gateway.session(chat)) for chat in chats]
        others = await started(url=gateway.url, keys=keys[1:])
        while not all(chat.sampled for chat in chats[1:]):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)
        lag = await stack.enter_async_context(LoopLag())
        flooding = await started(url=gateway.url, key=keys[0], requests=requests, megabytes=megabytes, text=text)
        flood, _ = await flooding.communicate()
        found = lag.run()
        quiet, _ = await others.communicate(b"")
        assert gateway.fault is None, gateway.fault
    figures = f"lag p50 {found.p50_ms:.1f} p99 {found.p99_ms:.1f} max {found.max_ms:.1f} ms"
    return f"{figures}; flood {flood.decode().strip()}; quiet {quiet.decode().strip()}"


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.0, 0.1, 1.0, 10.0])
    parser.add_argument("--context", type=int, default=WIDE.context, help="tokens that a dialog may have")
    args = parser.parse_args()
    from transformers import AutoTokenizer

    template = ChatTemplate(AutoTokenizer.from_pretrained(resolve_policy("smollm2-135m-instruct")))
    for text in ("x", "words and more of them, "):
        for megabytes in args.megabytes:
            with gc_frozen():  # as in a run
                found = asyncio.run(measured(template, args.context, args.requests, megabytes, text))
            print(f"{args.requests} x {megabytes:g} MB of {text!r}: {found}", flush=True)


if __name__ == "__main__":
    main()
