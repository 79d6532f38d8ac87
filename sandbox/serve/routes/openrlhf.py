"""OpenRLHF's route: rewards of samples, whose labels are their problems.

POST /get_reward    {query: [..], prompts: [..], labels: [..]}   ──▶ {rewards, scores, extra_logs}

`?reward=share` in the URL asks for the share of cases that pass instead of 1 or 0. A failure of the sandbox is 504:
OpenRLHF asks again, and no sample gets a 0 for it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sandbox.rewards.answer_text import answer_behind
from sandbox.serve.answers import AsciiJson
from sandbox.serve.bodies import Json, Refused, read_json
from sandbox.serve.openapi import post
from sandbox.serve.routes.shared import fields
from sandbox.serve.routes.shared.gather import all_of
from sandbox.serve.routes.shared.labels import check_answers, label_of, label_reward, reward_name
from sandbox.serve.service import Service

OPENAPI: Final = {
    "/get_reward": post(
        "OpenRLHF: rewards of samples whose labels are problems",
        fields.schema("query", "prompts", "labels"),
        fields.schema("rewards", "scores", "extra_logs"),
    ),
}
FULL: Final = {"/get_reward": 504}


def routes(service: Service) -> list[Route]:
    """The routes of this module."""

    async def get_reward(request: Request) -> Response:
        name, body = reward_name(request.query_params), await read_json(request)
        return AsciiJson(await _openrlhf(service, body, name))

    return [Route("/get_reward", get_reward, methods=["POST"])]


async def _openrlhf(service: Service, body: Json, name: str) -> Json:
    """A number where one sample is asked for, as its trainer reads it; a list for any other count, also for none."""
    queries, prompts = fields.texts(body, "query", []), fields.texts(body, "prompts", [])
    given = body.get("labels")
    if not isinstance(given, list) or not len(queries) == len(prompts) == len(given):
        raise Refused(422, "query, prompts and labels: must be lists of the same length")
    labels = []
    for n, label in enumerate(given):
        labels.append(label_of(service, f"labels[{n}]", label))
        await asyncio.sleep(0)  # others are answered between
    answers = [_answer(n, *pair) for n, pair in enumerate(zip(queries, prompts, strict=True))]
    check_answers("query", answers)
    pairs = zip(answers, labels, strict=True)
    found = await all_of(label_reward(service, answer, label, name) for answer, label in pairs)
    rewards: Any = found[0] if len(found) == 1 else found
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}


def _answer(number: int, query: str, prompt: str) -> str:
    if (answer := answer_behind(query, prompt)) is None:
        raise Refused(
            422, f"query[{number}]: prompts[{number}] does not stand in it, so nobody knows where its answer begins"
        )
    return answer
