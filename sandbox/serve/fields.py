"""Fields of requests. Their check ends at the first fault: a list of all would hold every other client up."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from sandbox.core.checks import quoted

Texts = Annotated[list[str], FailFast()]


def checked_later(kind: Any) -> PlainValidator:
    """A field of this JSON schema that the route checks; texts in it may hold any bytes, as surrogates."""
    return PlainValidator(lambda value: value, json_schema_input_type=kind)


class KnownFields(BaseModel):
    """A request that has no other fields than these."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        if isinstance(given, dict) and (unknown := given.keys() - cls.model_fields.keys()):
            known = {"name": quoted(min(unknown)), "known": ", ".join(cls.model_fields)}
            raise PydanticCustomError("unknown", "unknown field {name}; known fields: {known}", known)
        return given
