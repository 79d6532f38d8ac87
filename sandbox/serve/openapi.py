"""The OpenAPI 3.1 document: schemas follow from the data types, paths are what the modules of routes say."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from sandbox.core.excerpt import Excerpt
from sandbox.core.nouns import Judgement, Program
from sandbox.core.problem import Problem
from sandbox.core.program_run import ProgramRun

_PLAIN: Final[Mapping[object, Mapping[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    type(None): {"type": "null"},
    Excerpt: {
        "type": ["string", "object"],
        "description": "a text, or of a long one its head and tail, with bytes and sha256 of the whole",
    },
}
_STATUSES: Final[Mapping[str, str]] = {
    "400": "the body is no JSON object, or two files have the same name",
    "401": "the token is missing or wrong",
    "408": "the body came too slowly",
    "409": "the name of a problem is not known, or not any more: send it whole",
    "413": "the body is too long",
    "422": "a field is wrong; the message names it, its value, and the way out",
    "501": "this server lacks the language's compiler",
    "503": "the queue is full, or the server drains: ask again after the seconds of Retry-After",
    "504": "the sandbox failed, not the program: ask again",
}


def document(parts: Iterable[Mapping[str, Any]], version: str) -> dict[str, Any]:
    """The document. ``parts`` are ``paths`` objects."""
    schemas: dict[str, Any] = {"Error": ERROR}
    for kind in (Problem, Program, Judgement, ProgramRun):
        schema_of(kind, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "sandbox serve", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": {path: found for part in parts for path, found in part.items()},
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


ERROR: Final = {
    "type": "object",
    "properties": {
        "error": {"type": "object", "properties": {"type": {"type": "string"}, "message": {"type": "string"}}}
    },
}


def reference(kind: type) -> dict[str, Any]:
    """A reference to the schema of a data type."""
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def post(summary: str, body: Mapping[str, Any], answer: Mapping[str, Any], media: str = "application/json") -> Any:
    """A path with one POST: schemas of its body and of its answer, and the refusals that all have."""
    refusals = {
        status: {
            "description": text,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        for status, text in _STATUSES.items()
    }
    done = {"200": {"description": "done", "content": {media: {"schema": answer}}}}
    asked = {"required": True, "content": {"application/json": {"schema": body}}}
    return {"post": {"summary": summary, "requestBody": asked, "responses": done | refusals}}


def get(summary: str, media: str = "application/json") -> Any:
    """A path with one GET."""
    return {"get": {"summary": summary, "responses": {"200": {"description": "done", "content": {media: {}}}}}}


def schema_of(hint: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a type; those of data types are put into ``schemas``, and referred to."""
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(part, schemas) for part in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        if arguments[-1] is ...:
            return {"type": "array", "items": schema_of(arguments[0], schemas)}
        return {"type": "array", "prefixItems": [schema_of(part, schemas) for part in arguments]}
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return {"enum": [str(value) for value in hint]}
    if not is_dataclass(hint) or not isinstance(hint, type):
        raise TypeError(f"{hint}: has no JSON schema")
    if hint.__name__ not in schemas:
        schemas[hint.__name__] = {}
        hints = get_type_hints(hint)
        properties = {item.name: schema_of(hints[item.name], schemas) for item in fields(hint)}
        required = [f.name for f in fields(hint) if f.default is MISSING and f.default_factory is MISSING]
        schemas[hint.__name__] = {"type": "object", "properties": properties, "required": required}
    return reference(hint)
