"""A program beside the run that rolls episodes of an environment out, in an interpreter of its own.

    run(request) ──▶ a line of JSON on its stdin        a line on its stdout ──▶ the answer of that request

waits for: its answers        woken by: them, its end

Optional packages often need other versions than the run's: so they live in a virtual environment of their own. The
program ends with its owner, however that ends, and everything that it started ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from overlap.core.errors import RolloutError, one_line
from overlap.process import process_tree, subreaper
from overlap.process.run_environment import PARENT, child_environment
from overlap.server.harness_process import StderrTail
from recipes.environments.scored import EnvironmentFault

START_S, CLOSE_S = 300.0, 5.0
LINE_BYTES = 1 << 26


class EnvironmentHost:
    """The program ``argv``, as an async context; it is started by the first request."""

    def __init__(self, argv: Sequence[str], name: str) -> None:
        self._argv, self._name = list(argv), name
        self._numbers, self._starting = itertools.count(1), asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: StderrTail | None = None
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EnvironmentHost:
        return self

    async def __aexit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()  # which it takes as its end
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await process.wait()
            if process.returncode is None:
                await asyncio.to_thread(process_tree.kill_tree, [process.pid], CLOSE_S, reap=False, trackers=True)
                await process.wait()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    async def run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer. A caller that is cancelled cancels the request. Raises EnvironmentFault where the environment, or
        the program, fails; RolloutError where it cannot be started.
        """
        process = await self._started()
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._send(process, {"id": number, **request})
            found: dict[str, Any] = await answer
        except asyncio.CancelledError:
            self._send(process, {"cancel": number})
            raise
        finally:
            self._waiting.pop(number, None)
        if "fault" in found:
            raise EnvironmentFault(f"{self._name}: {one_line(found['fault'], 500)}")
        return found

    def _send(self, process: asyncio.subprocess.Process, request: Mapping[str, Any]) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")

    async def _started(self) -> asyncio.subprocess.Process:
        async with self._starting:
            ended = self._reading is None or self._reading.done()  # its answers, which end before it is reaped
            if self._process is not None and self._process.returncode is None and not ended:
                return self._process
            await self.__aexit__()
            known = child_environment()
            for name in (PARENT, "PYTHONPATH"):  # its imports are not ours
                known.pop(name, None)
            self._stderr = StderrTail()
            try:
                process = await asyncio.create_subprocess_exec(
                    *subreaper.subreaper_command(self._argv),
                    env=known,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._stderr.target,
                    start_new_session=True,
                    limit=LINE_BYTES,
                )
            except OSError as error:
                raise RolloutError(f"{self._name} cannot be started: {error.strerror or error}") from error
            finally:
                self._stderr.close_target()
            self._process = process
            await self._first_line(process)
            self._reading = asyncio.create_task(self._read(process), name="an environment's answers")
            return process

    async def _first_line(self, process: asyncio.subprocess.Process) -> None:
        why = ""
        try:
            async with asyncio.timeout(START_S):
                if await _line(process) is not None:
                    return
        except TimeoutError:
            why = f"its program (pid {process.pid}) says nothing for {START_S:g} s"
        except ValueError as error:
            why = f"its program (pid {process.pid}) {error}"
        raise RolloutError(f"{self._name} does not start: {why or self._said() or 'its program ended without a word'}")

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        why = f"its program (pid {process.pid}) broke off"
        try:
            while (found := await _line(process)) is not None:
                answer = self._waiting.get(found.get("id", 0))
                if answer is not None and not answer.done():
                    answer.set_result(found)
            why = f"its program has ended: {self._said() or 'without a word'}"
        except ValueError as error:  # the program is not to be trusted; the next request starts another one
            why = f"its program (pid {process.pid}) {error}"
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_result({"fault": why})

    def _said(self) -> str:
        if self._stderr is None:
            return ""
        self._stderr.listen()
        return one_line(self._stderr.text[-1500:])


async def _line(process: asyncio.subprocess.Process) -> dict[str, Any] | None:
    """The next line of a program; None at its end. Raises ValueError for what is no answer."""
    assert process.stdout is not None
    line, found = b"", None
    try:
        if not (line := await process.stdout.readline()):  # ValueError: one of more than LINE_BYTES
            return None
        found = json.loads(line)
    except (ValueError, RecursionError):
        pass
    if isinstance(found, dict) and isinstance(found.get("id", 0), int):
        return found
    raise ValueError(f"wrote what is no answer: {one_line(repr(line[:200])) if line else 'a line without an end'}")


def printed_json(argv: Sequence[str], seconds: float) -> Any:
    """Run a program and return the JSON that it prints; processes that it starts end with it. Raises RolloutError with
    the end of its stderr.
    """
    known = child_environment()
    known.pop("PYTHONPATH", None)
    try:
        done = subprocess.run(
            subreaper.subreaper_command(argv),
            env=known,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise RolloutError(f"{os.path.basename(argv[0])} ended with {done.returncode}: {one_line(said, 500)}")
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise RolloutError(f"no answer within {seconds:g} s") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RolloutError(f"{type(error).__name__}: {error}") from error
