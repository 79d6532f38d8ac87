"""Requests and answers of SandboxFusion: its names and its words. Null is the default of any field that has one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandbox.serve.bounds import RUN_S_MAX
from sandbox.serve.own import Texts, checked_later

Seconds = Annotated[float, Field(gt=0, le=RUN_S_MAX)]


class _Asked(BaseModel):
    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class RunCodeRequest(_Asked):
    """A program to run once. ``run_timeout`` is CPU time; memory of -1 is that of the server."""

    code: str
    language: str
    compile_timeout: Seconds = 10.0
    run_timeout: Seconds = 10.0
    memory_limit_MB: int = -1
    stdin: str = ""
    files: dict[str, Annotated[Any, checked_later(str | None)]] = {}
    """Contents in base64 by path."""
    fetch_files: Texts = []


class RunJupyterRequest(_Asked):
    """Cells of one notebook; a ``cell_timeout`` of 0 is that of all."""

    cells: Texts
    cell_timeout: float = Field(0.0, ge=0, le=RUN_S_MAX)
    total_timeout: Seconds = 45.0
    memory_limit_MB: int = -1
    kernel: Literal["python3"] = "python3"
    files: dict[str, Annotated[Any, checked_later(str | None)]] = {}
    fetch_files: Texts = []


class TestConfig(_Asked):
    """The problem that comes with a request, and how it is judged."""

    __test__ = False
    dataset_type: str = ""
    language: str = "python"
    run_timeout: Seconds | None = None
    custom_extract_logic: str = ""
    provided_data: Annotated[Any, checked_later(list[dict[str, Any]] | dict[str, Any] | None)] = None
    extra: dict[str, Any] = {}


class DatasetRequest(_Asked):
    """A request about the problems in ``config.provided_data``: the one of an ``id``, or ``limit`` from ``offset``."""

    dataset: str = ""
    config: TestConfig
    id: int | str | None = None
    offset: int = Field(0, ge=0)
    limit: int = Field(1_000_000, ge=0)


class SubmitRequest(DatasetRequest):
    """An answer to one of the problems."""

    completion: str


class CommandRunResult(BaseModel):
    """Result of a compilation or a run."""

    status: Literal["Finished", "TimeLimitExceeded"]
    execution_time: float
    return_code: int | None
    stdout: str | None
    stderr: str | None


class RunCodeResponse(BaseModel):
    """Failed: a return code is not 0, or a limit on time was met; never for a fault of ours."""

    status: Literal["Success", "Failed"]
    message: str
    compile_result: CommandRunResult | None = None
    run_result: CommandRunResult | None = None
    executor_pod_name: None = None
    files: dict[str, str] = {}


class CellRunResult(BaseModel):
    """Output and errors of a cell, and its last value."""

    stdout: str
    stderr: str
    display: list[dict[str, Any]]
    error: list[dict[str, Any]]


class RunJupyterResponse(BaseModel):
    """Failed: not all cells ended by themselves."""

    status: Literal["Success", "Failed"]
    message: str
    driver: CommandRunResult
    cells: list[CellRunResult]
    executor_pod_name: None = None
    files: dict[str, str]


class EvalTestCase(BaseModel):
    """A test of a problem."""

    passed: bool
    exec_info: RunCodeResponse
    test_info: dict[str, Any] | None = None


class EvalResult(BaseModel):
    """A judged answer."""

    id: int | str | None
    accepted: bool
    extracted_code: str
    full_code: None = None
    test_code: None = None
    tests: list[EvalTestCase]
    extracted_type: Literal["fenced", "incomplete_fenced", "heuristic", "empty"]
    extra: dict[str, Any]


class PromptRow(BaseModel):
    """The statement of a problem as it is in its row."""

    id: int | str | None
    prompt: str
    labels: dict[str, Any]
