"""``task.toml`` of a Harbor task, by schema 1.4: each field is used, has no part in a reward, or is refused.

A field that is not here is no field of the schema. ``Unused`` are fields that say something about the task, or about an
image's build or a server, and cannot change what the policy does or earns here.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sandbox.core.nouns import MIB, SECONDS_MAX

_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG])", re.IGNORECASE)


def _refuse(value: Any) -> Any:
    if value is None or value in ("", [], {}):
        return None
    raise PydanticCustomError("refused", "is not supported")


def _refuse_count(value: Any) -> Any:
    return value if value == 0 else _refuse(value)


Refused = Annotated[Any, BeforeValidator(_refuse)]
RefusedCount = Annotated[Any, BeforeValidator(_refuse_count)]
Unused = Any
Seconds = Annotated[float, Field(gt=0, le=SECONDS_MAX)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Network(_Section):
    """Commands and tests have no network; ``offline`` in the context plays a task that asks for one without."""

    network_mode: str | None = None
    allowed_hosts: list[str] | None = None

    @field_validator("network_mode", "allowed_hosts")
    @classmethod
    def _offline(cls, value: Any, info: ValidationInfo) -> Any:
        if value not in (None, "no-network", []) and not (info.context or {}).get("offline"):
            way_out = "asks for a network, and there is none: set data.options.offline if it works without"
            raise PydanticCustomError("network", way_out)
        return value


class Healthcheck(_Section):
    """Run once: no process outlives its command, so nothing could change between two tries."""

    command: str
    timeout_sec: Seconds = 30.0
    interval_sec: Unused = None
    start_period_sec: Unused = None
    start_interval_sec: Unused = None
    retries: Unused = None


class EnvironmentSection(_Network):
    """A place where commands run."""

    os: Literal["linux"] = "linux"
    workdir: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    cpus: Annotated[float, Field(gt=0, le=4096)] | None = None
    memory_mb: Annotated[int, Field(gt=0)] | None = None
    storage_mb: Annotated[int, Field(gt=0)] | None = None
    docker_image: str | None = None
    healthcheck: Healthcheck | None = None
    build_timeout_sec: Unused = None
    gpus: RefusedCount = None
    gpu_types: Refused = None
    tpu: Refused = None
    mcp_servers: Refused = None
    skills_dir: Refused = None

    @model_validator(mode="before")
    @classmethod
    def _earlier_names(cls, given: Any) -> Any:
        """``memory`` and ``storage`` are texts ("2G"), ``allow_internet`` is a network mode."""
        if not isinstance(given, dict):
            return given
        given = dict(given)
        for name in ("memory", "storage"):
            if name in given:
                size = _SIZE.fullmatch(str(given.pop(name)).strip())
                if size is None:
                    raise PydanticCustomError("size", "{name} is no size", {"name": name})
                given.setdefault(f"{name}_mb", int(float(size[1]) * _UNITS[size[2].upper()]))
        if (open_net := given.pop("allow_internet", None)) is not None:
            given.setdefault("network_mode", "public" if open_net else "no-network")
        return given

    @field_validator("os", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @property
    def memory_bytes(self) -> int:
        return (self.memory_mb or 2048) * MIB

    @property
    def work_bytes(self) -> int:
        """Bytes of the work directory, which is in memory."""
        return min(self.storage_mb or 256, 1024) * MIB


class AgentSection(_Network):
    timeout_sec: Seconds | None = None
    user: Refused = None


class Collect(_Section):
    command: str
    service: Literal["main"] = "main"
    timeout_sec: Seconds = 60.0
    user: Refused = None


class VerifierSection(_Network):
    timeout_sec: Seconds = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentSection | None = None
    collect: list[Collect] = Field(default_factory=list)
    user: Refused = None

    @property
    def separate(self) -> bool:
        """True when the tests have an environment of their own."""
        return (self.environment_mode or ("separate" if self.environment else "shared")) == "separate"

    @model_validator(mode="after")
    def _shared_has_none(self) -> VerifierSection:
        if self.environment_mode == "shared" and self.environment is not None:
            raise PydanticCustomError("shared", "environment_mode is shared, and there is an environment")
        return self


class Artifact(_Section):
    source: str
    destination: Unused = None
    exclude: Refused = None
    service: Literal["main"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _source(cls, given: Any) -> Any:
        return {"source": given} if isinstance(given, str) else given


class TaskToml(_Section):
    """The whole file."""

    schema_version: Literal["1.0", "1.1", "1.2", "1.3", "1.4"] = "1.4"
    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    environment: EnvironmentSection = EnvironmentSection()
    artifacts: list[Artifact] = Field(default_factory=list)
    task: Unused = None
    metadata: Unused = None
    solution: Unused = None
    source: Unused = None
    steps: Refused = None
    multi_step_reward_strategy: Refused = None

    @model_validator(mode="before")
    @classmethod
    def _earlier_name(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {"schema_version" if name == "version" else name: value for name, value in given.items()}
