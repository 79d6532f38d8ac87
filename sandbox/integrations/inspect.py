"""Inspect: our jails as a sandbox of samples, and a scorer that judges by tests.

    Task(dataset=..., solver=[use_tools(bash(), python()), generate()], sandbox="overlap", scorer=judged_by_tests())

`pip install overlap-rl` beside Inspect registers the name "overlap" (an entry point). Commands run one after the other,
each in a jail, without network; the files of a sample stay, its processes do not (`sandbox.integrations.box`).
"""

from __future__ import annotations

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

from sandbox.errors import SandboxError
from sandbox.integrations.box import Box
from sandbox.integrations.code_reward import CodeReward, Row, Unjudged


@sandboxenv(name="overlap")
class JailedSandboxEnvironment(SandboxEnvironment):
    """A box of files per sample, whose commands run in jails of this process's pool, or on SANDBOX_URL."""

    def __init__(self) -> None:
        super().__init__()
        self._box = Box()

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
        """Nothing: a box is bytes in memory, and its jails end with their commands."""

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
        stdin = input.encode() if isinstance(input, str) else input or b""
        try:
            done = await self._box.exec(cmd, stdin=stdin, cwd=cwd or "", env=env, timeout_s=timeout)
        except SandboxError as error:
            raise SandboxUnavailableError(str(error)) from error
        out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
        if done.cut:
            raise OutputLimitExceededError("10 MiB", out + err)
        return ExecResult(done.code == 0, done.code, out, err)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        await self._box.write(file, contents.encode() if isinstance(contents, str) else contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        content = await self._box.read(file)
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
