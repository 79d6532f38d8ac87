"""Tokens per second through ``EngineClient`` against the bare ``AsyncLLM`` inside its host.

Both sides send the same prompts with the same sampling parameters, one request per sample, to the same engine, and each
response has exactly ``--response-tokens`` tokens: a round is the same work for both. They take turns in going first.
Prefixes are shared within a group and never between rounds. This file is run twice: as the benchmark, and by that as
the engine's host, where it adds the bare side. Exit code 1 where the median ratio is below its bar of 0.95.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from _shared import argument_parser

from overlap.config.fields import Config, ModelConfig
from overlap.config.rollout import RolloutConfig
from overlap.core import Generator, Prompt, Request
from overlap.generate.client import EngineClient
from overlap.generate.host import EngineHost
from overlap.policy.resolve import resolve_policy
from overlap.process.calls import RemoteCall, serve_until_hung_up

BAR = 0.95
Round = Callable[[list[Request], str], Awaitable[int]]


def main() -> int:
    options = _options()
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # the host finds this file there
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        ratio = asyncio.run(_bench(options, scratch))
    finally:
        shutil.rmtree(scratch)
    print(f"median ratio {ratio:.3f} (bar {BAR})")
    return 0 if ratio >= BAR else 1


def _options() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--policy", default="smollm2-135m-instruct", help="name, directory or hub id")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--groups", type=int, default=8, help="prompts in a round")
    parser.add_argument("--samples", type=int, default=8, help="samples per prompt")
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--response-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of rounds, after one to warm up")
    return parser.parse_args()


async def _bench(options: argparse.Namespace, scratch: Path) -> float:
    cfg = Config(
        model=ModelConfig(
            policy=options.policy,
            dtype=options.dtype,
            prompt_tokens=options.prompt_tokens,
            response_tokens=options.response_tokens,
        ),
        rollout=RolloutConfig(max_sequences=options.groups * options.samples),
    )
    policy = resolve_policy(options.policy)
    generator = EngineClient(cfg, policy, scratch, standalone=True, host=Path(__file__).stem)
    try:
        await generator.start()
        return await _rounds(options, {"door": _through_the_door(generator), "bare": _bare(generator, options)})
    finally:
        await generator.close()


def _through_the_door(generator: Generator) -> Round:
    async def one_round(requests: list[Request], _: str) -> int:
        return sum(len(t.token_ids) for t in await asyncio.gather(*map(generator.generate, requests)))

    return one_round


def _bare(generator: EngineClient, options: argparse.Namespace) -> Round:
    async def one_round(requests: list[Request], salt: str) -> int:  # finds no prefix of the door's in the cache
        peer: Any = generator._peer
        prompts = [(request.id, request.prompt.token_ids) for request in requests]
        return int(await peer.call("bare", prompts, options.response_tokens, salt))

    return one_round


class BenchHost(EngineHost):
    """A host that also answers ``bare``: a round without the door. Its responses never end early."""

    async def do(self, call: RemoteCall) -> Any:
        if call.name == "bare":
            return await self._bare(*call.args)
        answer = await super().do(call)
        if call.name == "open":
            vllm = self._engine._vllm
            vllm.SamplingParams = functools.partial(vllm.SamplingParams, ignore_eos=True)
        return answer

    async def _bare(self, prompts: list[tuple[str, tuple[int, ...]]], response_tokens: int, salt: str) -> int:
        llm, vllm = self._engine._llm, self._engine._vllm
        params = vllm.SamplingParams(
            temperature=1.0,
            max_tokens=response_tokens,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=vllm.RequestOutputKind.FINAL_ONLY,
        )

        async def sample(id: str, token_ids: tuple[int, ...]) -> int:
            prompt = vllm.TokensPrompt(prompt_token_ids=list(token_ids), cache_salt=salt)
            return sum([len(out.outputs[0].token_ids) async for out in llm.generate(prompt, params, salt + id)])

        return sum(await asyncio.gather(*(sample(*prompt) for prompt in prompts)))


async def _rounds(options: argparse.Namespace, sides: dict[str, Round]) -> float:
    """Median ratio of the door to the bare engine."""
    ratios = []
    for number in range(options.rounds + 1):
        requests = _requests(options, number)
        speed = {}
        for side in sorted(sides, reverse=bool(number % 2)):
            began = time.monotonic()
            tokens = await sides[side](requests, f"round{number}")
            speed[side] = tokens / (time.monotonic() - began)
        if number == 0:
            continue
        ratios.append(speed["door"] / speed["bare"])
        speeds = ", ".join(f"{side} {speed[side]:7.1f} tok/s" for side in sides)
        print(f"round {number}: {speeds}, ratio {ratios[-1]:.3f}", flush=True)
    return statistics.median(ratios)


def _requests(options: argparse.Namespace, number: int) -> list[Request]:
    rng = random.Random(number)
    prompts = [
        Prompt(f"p{group}", tuple(rng.choices(range(3, 256), k=options.prompt_tokens)))
        for group in range(options.groups)
    ]
    return [Request(g, s, prompts[g]) for g in range(options.groups) for s in range(options.samples)]


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].isdigit():  # the socket of a host
        serve_until_hung_up(BenchHost)
    sys.exit(main())
