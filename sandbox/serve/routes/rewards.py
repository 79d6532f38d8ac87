"""Rewards for trainers that ask a URL: the label of a sample is its problem.

POST /get_reward    OpenRLHF   {query: [..], prompts: [..], labels: [..]}   ──▶ {rewards, scores, extra_logs}
POST /remote_rm     slime      {prompt, response, label}                    ──▶ a number

`?reward=share` in the URL asks for the share of cases that pass instead of 1 or 0. A failure of the sandbox is 504:
both ask again, and no sample gets a 0 for it.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sandbox.rewards import fenced_blocks
from sandbox.serve.answers import AsciiJson
from sandbox.serve.bodies import Json, Refused, read_json
from sandbox.serve.openapi import post
from sandbox.serve.service import Service
from sandbox.serve.wires import fields
from sandbox.serve.wires.at_once import all_of
from sandbox.serve.wires.labels import label_of, label_reward, reward_name

OPENAPI: Final = {
    "/get_reward": post(
        "OpenRLHF: rewards of samples whose labels are problems",
        fields.schema("query", "prompts", "labels"),
        fields.schema("rewards", "scores", "extra_logs"),
    ),
    "/remote_rm": post("slime: the reward of a sample", fields.schema("response", "label"), {"type": "number"}),
}
FULL: Final = dict.fromkeys(("/get_reward", "/remote_rm"), 504)
_TAIL: Final = 200
"""Characters of a prompt by whose end its answer is found, where the prompt was cut at its beginning."""


def routes(service: Service) -> list[Route]:
    """The routes of this module."""

    async def get_reward(request: Request) -> Response:
        name, body = reward_name(request.query_params), await read_json(request)
        return AsciiJson(await _openrlhf(service, body, name))

    async def remote_rm(request: Request) -> Response:
        name, body = reward_name(request.query_params), await read_json(request)
        label = label_of(service, "label", body.get("label"))
        return AsciiJson(await label_reward(service, fields.text(body, "response"), label, name))

    return [
        Route("/get_reward", get_reward, methods=["POST"]),
        Route("/remote_rm", remote_rm, methods=["POST"]),
    ]


async def _openrlhf(service: Service, body: Json, name: str) -> Json:
    """A number where one sample is asked for, as its trainer reads it; a list for any other count, also for none."""
    queries, prompts = fields.texts(body, "query", []), fields.texts(body, "prompts", [])
    given = body.get("labels")
    if not isinstance(given, list) or not len(queries) == len(prompts) == len(given):
        raise Refused(422, "query, prompts and labels: must be lists of the same length")
    labels = [label_of(service, f"labels[{n}]", label) for n, label in enumerate(given)]
    answers = [answer_in(*pair) for pair in zip(queries, prompts, strict=True)]
    pairs = zip(answers, labels, strict=True)
    found = await all_of(label_reward(service, answer, label, name) for answer, label in pairs)
    rewards: Any = found[0] if len(found) == 1 else found
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}


def answer_in(query: str, prompt: str) -> str:
    """What stands after the prompt; all of the text where that is not found in it. Raises Refused where code of the
    prompt would be taken for the answer's then.
    """
    for part in (prompt, prompt[-_TAIL:]):
        if part and part in query:
            return query.partition(part)[2]
    if any(fenced_blocks(prompt)):
        raise Refused(422, "query: its prompt is not found in it, and holds code, which must not be paid as an answer")
    return query
