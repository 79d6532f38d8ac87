"""Fields of a request's JSON body, accepted or refused by name. Pure.

Sampling parameters belong to the trainer: they are accepted and ignored, because clients send them by default. Fields
that would change what is sampled, or how many answers there are, are refused. Fields that would force the form of an
answer are ignored, and counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from overlap.core.errors import RequestRefused
from overlap.server.turn_request import RequestRules
from sandbox.serve.parsed_texts import count_values

MODEL = "policy"
MESSAGES, TOOLS, STOPS, STOP_CHARACTERS = 4096, 128, 16, 200
VALUES = 100_000
"""Limits on one request. ``VALUES``: of a whole body, as more are read so slowly that everything else waits."""
_ONLY_NULL = (
    *("prompt_logprobs", "audio", "prediction", "web_search_options", "allowed_token_ids", "chat_template"),
    *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
)
_REFUSED: Mapping[str, tuple[Any, ...]] = dict.fromkeys(_ONLY_NULL, (None,)) | {
    "n": (None, 1),
    "best_of": (None, 1),
    "logit_bias": (None, {}),
    "logprobs": (None, False, 0),
    "top_logprobs": (None, 0),
    "echo": (None, False),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "bad_words": (None, []),
    "stop_token_ids": (None, []),
    "ignore_eos": (None, False),
    "min_tokens": (None, 0),
    "continue_final_message": (None, False),
}
"""Values without effect; any other would change how the policy is sampled, or is not implemented here."""
Json = Mapping[str, Any]


def check_fields(raw: Json, rules: RequestRules) -> None:
    """Raise RequestRefused for a field that would change what is sampled."""
    for name, harmless in _REFUSED.items():
        if name in raw and raw[name] not in harmless:
            raise RequestRefused(
                f"{name}: it would change what the trainer samples, or is not spoken here; leave it out"
            )
    _check_template(raw.get("chat_template_kwargs"), rules)


def parsed(body: bytes) -> Json:
    """A body as an object. Raises RequestRefused."""
    if (values := count_values(body, VALUES)) > VALUES:
        raise RequestRefused(f"the body has {values} values; at most {VALUES} are read")
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"the body is no JSON: {str(error)[:100]}") from None
    if not isinstance(raw, dict):
        raise RequestRefused("the body must be a JSON object")
    if b"\\u" in body:
        try:
            json.dumps(raw, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            raise RequestRefused("the body holds text that is no Unicode") from None
    return raw


def _check_template(given: Any, rules: RequestRules) -> None:
    own = rules.template or {}
    if given is not None and (not isinstance(given, dict) or any(own.get(k, ...) != v for k, v in given.items())):
        way_out = "set the run's model.chat_template_kwargs; a request may only repeat it"
        here = json.dumps(own, default=str)  # YAML has dates
        raise RequestRefused(f"chat_template_kwargs: {json.dumps(given)[:100]} is not {here}: {way_out}")


def forced_form(given: Any) -> tuple[str, ...]:
    """``response_format``: the parameters that are ignored. Raises RequestRefused."""
    kind = given.get("type") if isinstance(given, dict) else given
    if kind in (None, "text"):
        return ()
    if kind not in ("json_object", "json_schema"):
        raise RequestRefused(f"response_format: {str(kind)[:40]!r} is none of text, json_object, json_schema")
    return ("response_format",)


def tool_choice(raw: Json, tools: tuple[Json, ...], rules: RequestRules) -> tuple[str, ...]:
    """Parameters that are ignored: a call is never forced. Raises RequestRefused."""
    choice = raw.get("tool_choice") or "auto"
    if choice in ("auto", "none"):
        return ()
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        if name not in [tool["function"]["name"] for tool in tools]:
            raise RequestRefused(f"tool_choice: {str(name)[:40]!r} is none of the tools")
    elif choice != "required":
        raise RequestRefused(f"tool_choice: use auto, none, required, or a function; not {str(choice)[:40]!r}")
    if not rules.calls:
        raise RequestRefused("tool_choice: no tool call is read in this run; set episode.tool_parser")
    return ("tool_choice",)


def listed_objects(raw: Json, name: str, most: int) -> tuple[Json, ...]:
    """A field that is a list of objects. Raises RequestRefused."""
    found = raw.get(name) or []
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise RequestRefused(f"{name}: it must be a list of objects")
    if len(found) > most:
        raise RequestRefused(f"{name}: {len(found)} of them; at most {most} are read")
    return tuple(found)


def read_stop(raw: Any) -> tuple[str, ...]:
    """Texts that end an answer. Raises RequestRefused."""
    found = [] if raw is None else [raw] if isinstance(raw, str) else raw
    if (
        not isinstance(found, list)
        or len(found) > STOPS
        or not all(isinstance(word, str) and 0 < len(word) <= STOP_CHARACTERS for word in found)
    ):
        raise RequestRefused(f"stop: use up to {STOPS} texts of 1 to {STOP_CHARACTERS} characters")
    return tuple(found)


def smallest_limit(raw: Json, *names: str) -> Any:
    """The smallest of these fields, or the first that is no number; None where none is given."""
    given = [raw[name] for name in names if raw.get(name) is not None]
    wrong = [limit for limit in given if type(limit) is not int]
    return wrong[0] if wrong else min(given, default=None)


def failure(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error as a JSON body."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def event_of(body: Json) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(body).encode() + b"\n\n"
