"""Inspect: a session's workspace as the sandbox of a sample, and a scorer that judges by tests.

    Task(dataset=..., solver=[use_tools(bash(), python()), generate()], sandbox="overlap", scorer=judged_by_tests())

`pip install overlap-rl` beside Inspect registers the name "overlap" (an entry point). Commands run one after the other,
in a jail without network; the files of a sample stay, its processes do not.
"""

from __future__ import annotations

import errno
import shlex
from typing import Any, Literal, overload

from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import TaskState
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from sandbox.core.nouns import MIB, Limits
from sandbox.errors import SandboxError
from sandbox.integrations.code_reward import CodeReward, Row, Unjudged
from sandbox.session.sessions import Sessions

_LIMITS = Limits(
    cpu_s=3600, wall_s=3600, memory_bytes=2048 * MIB, output_bytes=10 * MIB, processes=256, open_files=1024
)  # fmt: skip


@sandboxenv(name="overlap")
class JailedSandboxEnvironment(SandboxEnvironment):
    """A working directory per sample, which its commands share."""

    def __init__(self) -> None:
        super().__init__()
        self._sessions = Sessions(1, limits=_LIMITS, shown_bytes=_LIMITS.output_bytes)
        self._workspace = self._sessions.open().workspace()

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        return {"default": cls()}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(cls)._sessions.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        if user is not None:
            raise SandboxUserUnsupportedError(f"user={user!r}: commands run as one user without rights; leave it out")
        command = f"cd {shlex.quote(cwd or '.')} && exec {shlex.join(cmd)}"
        try:
            done = await self._workspace.exec(command, stdin=input or b"", timeout_s=timeout, environment=env)
        except SandboxError as error:
            raise SandboxUnavailableError(str(error)) from error
        if done.ended == "timed out":
            raise TimeoutError(f"{cmd[0]}: did not end within {timeout or _LIMITS.wall_limit_s:g} s")
        if done.cause.startswith("output"):
            raise OutputLimitExceededError("10 MiB", done.stdout + done.stderr)
        code = 137 if done.exit_code is None else done.exit_code
        return ExecResult(code == 0, code, done.stdout, done.stderr + done.cause)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        try:
            await self._workspace.write(file, contents)
        except OSError as error:
            if error.errno == errno.EROFS:
                raise PermissionError(f"{file}: only files in the sample's directory can be written") from error
            raise

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        content = await self._workspace.read(file)
        return content.decode() if text else content


@scorer(metrics=[accuracy(), stderr()])
def judged_by_tests(column: str = "", **settings: Any) -> Scorer:
    """A scorer: 1 where the program in the answer passes the tests of the sample's metadata, or of its target, else 0.

    ``column``: the key of the metadata that holds the tests. ``settings``: other fields of CodeReward. Where it could
    not be judged it raises Unjudged, which makes the sample an error.
    """
    how = CodeReward(column=column, **settings)

    async def score(state: TaskState, target: Target) -> Score:
        truth = Row(state.metadata) if column else target.text
        value = await how.reward_later(state.output.completion, truth)
        return Score(value=value, answer=state.output.completion)

    return score


__all__ = ["JailedSandboxEnvironment", "Unjudged", "judged_by_tests"]
