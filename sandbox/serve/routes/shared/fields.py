"""Fields of a request, read one by one: each is refused by its name where it is missing or of another type."""

from __future__ import annotations

import binascii
import json
import math
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final

from sandbox.core.checks import quoted
from sandbox.serve.bodies import Json, Refused
from sandbox.serve.parsed_texts import TEXT_VALUES, count_values

_MISSING: Final = object()


def schema(*required: str) -> Json:
    """The JSON schema of a request as another project defines it: an object with at least these fields."""
    return {"type": "object", "required": list(required)}


def text(body: Mapping[str, Any], name: str, default: Any = _MISSING) -> str:
    """A text; null is taken for the default, where there is one. Raises Refused, as all of these functions."""
    value = given(body, name, default)
    if not isinstance(value, str) and value is not default:
        raise refusal(name, value, "text")
    return str(value)


def above_zero(body: Mapping[str, Any], name: str, default: float, *, most: float) -> float:
    """A positive number, at most ``most``."""
    value = given(body, name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise refusal(name, value, "a number")
    if not 0 < value <= most:
        raise refusal(name, value, f"more than 0 and at most {most:g}")
    return float(value)


def texts(body: Mapping[str, Any], name: str, default: Any = _MISSING) -> list[str]:
    """A list of texts."""
    value = given(body, name, default)
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise refusal(name, value, "a list of texts")
    return list(value)


def mapping(body: Mapping[str, Any], name: str, default: Any = _MISSING) -> Json:
    """A JSON object."""
    value = given(body, name, default)
    if not isinstance(value, dict):
        raise refusal(name, value, "a JSON object")
    return value


def parsed(where: str, value: Any) -> Any:
    """The value itself, or what it holds as JSON text."""
    if not isinstance(value, str):
        return value
    if (values := count_values(value.encode("utf-8", "surrogatepass"), TEXT_VALUES)) > TEXT_VALUES:
        raise Refused(413, f"{where}: has {values} JSON values; at most {TEXT_VALUES} are read of one text")
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise Refused(422, f"{where}: is no JSON: {str(error)[:200]}") from None


def from_base64(where: str, value: Any) -> bytes:
    """The bytes of a text in base64."""
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise refusal(where, value, "text in base64") from None


def refusal(name: str, value: object, form: str) -> Refused:
    """The refusal of a field that is not of this form."""
    return Refused(422, f"{name}={quoted(value)}: must be {form}")


def given(body: Mapping[str, Any], name: str, default: Any = _MISSING) -> Any:
    """A field of any type."""
    value = body.get(name)
    if value is not None:
        return value
    if default is _MISSING:
        raise Refused(422, f"field {name!r} is missing")
    return default
