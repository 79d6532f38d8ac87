"""slime's route: the reward of a sample, whose label is its problem.

POST /remote_rm     {prompt, response, label}   ──▶ a number

`?reward=share` in the URL asks for the share of cases that pass instead of 1 or 0. A failure of the sandbox is 504:
slime asks again, and no sample gets a 0 for it.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sandbox.serve.answers import AsciiJson
from sandbox.serve.bodies import read_json
from sandbox.serve.openapi import post
from sandbox.serve.routes.shared import fields
from sandbox.serve.routes.shared.labels import check_answers, label_of, label_reward, reward_name
from sandbox.serve.service import Service

OPENAPI: Final = {
    "/remote_rm": post("slime: the reward of a sample", fields.schema("response", "label"), {"type": "number"}),
}
FULL: Final = {"/remote_rm": 504}


def routes(service: Service) -> list[Route]:
    """The routes of this module."""

    async def remote_rm(request: Request) -> Response:
        name, body = reward_name(request.query_params), await read_json(request)
        label, response = label_of(service, "label", fields.given(body, "label")), fields.text(body, "response")
        check_answers("response", (response,))
        return AsciiJson(await label_reward(service, response, label, name))

    return [Route("/remote_rm", remote_rm, methods=["POST"])]
