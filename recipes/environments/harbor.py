"""Task directories of Harbor as a task: ``data.task=recipes.environments.harbor:HarborTask``.

    instruction ──▶ the policy ⇄ a shell in /app, jailed ──▶ tests/test.sh ──▶ reward

The policy writes a command in a fenced block, reads what it did, and so on; an answer without one is its end. Then the
tests are written beside, and run in the same directory; or in an environment of their own, which gets the artifacts.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from overlap.core import LeftOut, Prompt
from overlap.core.errors import ConfigError, one_line
from overlap.task import Task, messages_prompt, task_options
from recipes.environments.harbor_files import (
    FileTree,
    HarborFiles,
    TaskEnvironment,
    UnsupportedTask,
    find_tasks,
    read_reward,
    read_task,
)
from recipes.environments.scored import EnvironmentFault, Range, Seal, given_reward, refuse_command, scored
from sandbox.core.nouns import SECONDS_MAX, Limits
from sandbox.rewards.extract import fenced_blocks

if TYPE_CHECKING:
    from overlap.config.fields import Config
    from overlap.server.chat import Chat
    from overlap.server.episodes import EpisodeSandbox
    from sandbox.core.nouns import Judgement
    from sandbox.session.output import Finished
    from sandbox.session.workspace import Workspace

SYSTEM = """You work in a shell, in the directory WORKDIR, to do what you are asked.
Answer with one command, or a few lines of them, in a block:
```bash
ls
```
You read what it printed, and answer again. Files stay between commands; variables, the directory you are in and
processes do not. When all is done, answer without a block."""
_SHELLS = ("", "bash", "sh", "shell")
"""Tags of a block that is a command."""
_TOLD = 4000
_OUTSIDE = re.compile(r"(?:/tmp|/dev/shm|/box/work|~|\$HOME|\$\{HOME\})/([\w.+-]+)")
_CLEAR = """cd /box/work || exit
rm -rf .artifacts
[ -L logs ] || [ ! -d logs/artifacts ] || mv logs/artifacts .artifacts
for name in * .[!.]* ..?*; do
    case "$name" in KEPT) continue ;; esac
    [ -L "$name" ] || chmod -R u+rwx -- "$name" 2> /dev/null
    rm -rf -- "$name" || exit
done
mkdir -p TOP logs/verifier || exit
[ ! -d .artifacts ] || mv .artifacts logs/artifacts || exit
chmod u+rwx TOP 2> /dev/null
[ -x TOP ]"""
"""Removes the policy's files outside of its directory and /logs/artifacts: the home directory and /tmp are above the
tests, and hold files from which shells, interpreters and test runners load code. Makes the directory accessible: in one
without permissions the files to remove would seem to be gone."""
_REWARDS = ("logs/verifier/reward.json", "logs/verifier/reward.txt")


@dataclass(frozen=True)
class HarborOptions:
    """``data.options`` of such a task."""

    tasks: str = ""
    """A task directory, or one of several."""
    roots: str = ""
    """A directory that holds, by name of the task, the files of its image; such a task sees these files instead of the
    machine's tools, read-only, and the image's /app as its own copy. NAME.verifier: the files of its tests' image."""
    offline: bool = False
    """Play tasks that ask for a network without one."""
    readable: tuple[str, ...] = ()
    """Further paths of the machine that commands and tests may read."""
    path: str = ""
    """Directories in front of the PATH of commands and tests, such as the ``bin`` of a virtual environment."""
    heldout: int = 0
    """Number of tasks, the last ones, to evaluate on."""
    reward_least: float | None = 0.0
    reward_most: float | None = 1.0
    """The range of rewards that count; any other is a fault of the environment. null: no bound."""
    command_s: float = 60.0
    """Wall time of a command at most, s."""
    system: str = ""
    """System message to the policy; "": how to use the shell."""


class HarborTask(Task):
    """Tasks below ``data.options.tasks``."""

    options: ClassVar[type] = HarborOptions

    def __init__(self, options: HarborOptions) -> None:
        self._folders = find_tasks(Path(options.tasks)) if options.tasks else []
        if not self._folders:
            way_out = "there is no task (instruction.md, task.toml, tests/test.sh) in it, nor in a directory of it"
            if not Path(options.tasks or "-").is_dir():
                way_out = "there is no such directory: name one with a task, or with directories of tasks"
            raise ConfigError("data.options.tasks", options.tasks, way_out)
        if not 0 <= options.heldout < len(self._folders):
            way_out = f"there are {len(self._folders)} tasks: hold fewer out, so that one is left to train on"
            raise ConfigError("data.options.heldout", options.heldout, way_out)
        self._range = Range(options.reward_least, options.reward_most)
        self._options, self._seal = options, Seal()

    @classmethod
    def from_config(cls, cfg: Config) -> HarborTask:
        refuse_command(cfg)
        return cls(task_options(cfg, cls))

    def prompts(self, tokenizer: Any, split: str) -> Sequence[Prompt | LeftOut]:
        late = len(self._folders) - self._options.heldout
        folders = self._folders[:late] if split == "train" else self._folders[late:]
        return [self._prompt(tokenizer, folder) for folder in folders]

    def _prompt(self, tokenizer: Any, folder: Path) -> Prompt | LeftOut:
        try:
            asked = self._messages(self._read(folder))
        except UnsupportedTask as refused:
            return LeftOut(str(folder), refused.reason, refused.detail)
        return messages_prompt(tokenizer, folder.name, asked, data={"row": str(folder), "seal": self._seal})

    def _read(self, folder: Path) -> HarborFiles:
        return read_task(folder, self._options.roots, self._options.offline)

    def _messages(self, task: HarborFiles) -> list[Any]:
        system = self._options.system or SYSTEM.replace("WORKDIR", task.place.workdir)
        return [{"role": "system", "content": system}, {"role": "user", "content": task.instruction}]

    async def rollout(self, prompt: Prompt, chat: Chat, sandbox: EpisodeSandbox) -> str:
        try:
            task = await asyncio.to_thread(self._read, Path(prompt.data["row"]))
        except UnsupportedTask as changed:
            raise EnvironmentFault(f"harbor: {prompt.id}: {changed.reason}: {changed.detail}") from changed
        shell = await self._opened(sandbox, task, task.place)
        said = await self._work(task, chat, shell)
        for hook in task.toml.verifier.collect:  # as in Harbor, one that fails is no fault
            await shell.run(hook.command, hook.timeout_sec)
        reward, how = await (self._judge_apart if task.verifier else self._judge)(shell, sandbox, task)
        return scored(said, reward, prompt.data, self._range, tests=how)

    async def _work(self, task: HarborFiles, chat: Chat, shell: Shell) -> str:
        """Run the policy's commands until an answer has none or its seconds are used. Returns its last answer."""
        messages, left = self._messages(task), task.toml.agent.timeout_sec or float("inf")
        while True:
            reply = await chat.say(messages)
            command = next((b.code for b in fenced_blocks(reply.text) if b.closed and b.tag in _SHELLS), None)
            if command is None or left <= 0:
                return reply.text
            try:
                done = await shell.run(command, min(self._options.command_s, left))
                left, told = left - done.wall_s, _told(done)
            except ValueError as error:  # none that a shell can be given
                told = f"[{error}]"
            if left <= 0:
                return reply.text
            messages += [reply.message, {"role": "user", "content": told}]

    def reward(self, prompt: Prompt, answer: str, judgement: Judgement | None) -> float | None:
        return given_reward(answer, prompt.data)

    async def _opened(self, sandbox: EpisodeSandbox, task: HarborFiles, place: TaskEnvironment) -> Shell:
        """A place with its files, and in good health. Raises EnvironmentFault."""
        toml, own, check = task.toml, place.section, place.section.healthcheck
        asked = [hook.timeout_sec for hook in toml.verifier.collect] + ([check.timeout_sec] if check else [])
        longest = max(self._options.command_s, toml.verifier.timeout_sec, *asked)
        limits = Limits(
            cpu_s=min(longest * (own.cpus or os.cpu_count() or 1), SECONDS_MAX), wall_s=longest,
            memory_bytes=own.memory_bytes, processes=256, open_files=1024, file_bytes=own.work_bytes,
            output_bytes=min(own.work_bytes, Limits().output_bytes),
        )  # fmt: skip
        links = {f"/{name}": name for name in (task.place.top, place.top, "tests", "logs")}
        work = sandbox.workspace(
            root=place.root, readable=self._options.readable, links=links, work_bytes=own.work_bytes, limits=limits
        )
        shell = Shell(work, place, self._options.path, self._options.command_s)
        try:
            await shell.lay_out(place.tree, place.workdir[1:], "logs/artifacts", "logs/verifier")
        except OSError as error:
            raise EnvironmentFault(f"harbor: {task.name}: its files cannot be laid out: {error.strerror}") from error
        if check and (done := await shell.run(check.command, check.timeout_sec)).exit_code != 0:
            raise EnvironmentFault(f"harbor: {task.name}: its healthcheck failed {_end(done)}")
        return shell

    async def _judge(self, shell: Shell, sandbox: EpisodeSandbox, task: HarborFiles) -> tuple[float, str]:
        """The reward, and how the tests ended, in the place of the policy. Raises EnvironmentFault where they give
        none.
        """
        top = shell.place.top
        kept = "|".join(map(shlex.quote, [".artifacts", top, *_named_outside(task.instruction, top)]))
        cleared = await shell.run(_CLEAR.replace("KEPT", kept).replace("TOP", shlex.quote(top)), at="/")
        try:
            await shell.lay_out(task.tests.below("tests"), "tests")
        except OSError as error:
            return 0.0, f"no room for the tests: {error.strerror}"
        if cleared.exit_code != 0:
            return 0.0, "what is in the place of the tests cannot be removed"
        return await self._test(shell, task)

    async def _judge_apart(self, shell: Shell, sandbox: EpisodeSandbox, task: HarborFiles) -> tuple[float, str]:
        """The same in the tests' own place: a new jail, with the artifacts."""
        assert task.verifier is not None
        left = FileTree(*await shell.work.files()).parts(task.artifacts, without=_REWARDS)
        await shell.work.close()
        tests = await self._opened(sandbox, task, task.verifier)
        replaced = [name for name in task.artifacts if left.parts([name]).files]
        await tests.run(f"cd /box/work && rm -rf -- {' '.join(map(shlex.quote, replaced))}", at="/")
        try:
            await tests.lay_out(left, "logs/verifier", task.verifier.workdir[1:])
            await tests.lay_out(task.tests.below("tests"), "tests")
        except OSError as error:
            return 0.0, f"no room for the artifacts: {error.strerror}"
        return await self._test(tests, task)

    async def _test(self, shell: Shell, task: HarborFiles) -> tuple[float, str]:
        done = await shell.run("bash -c /tests/test.sh", task.toml.verifier.timeout_sec, task.verifier_variables)
        if done.ended is not None:  # what the policy left is too slow, or too much, for them
            return 0.0, done.cause
        left = [await shell.content(path) for path in _REWARDS]
        reward = read_reward(left[0], left[1], self._range)
        if reward is None:
            found, what = next((x for x in left if x and x.strip()), b""), "no reward"
            if found:
                what = f"{one_line(repr(found)[1:], 80)}, no reward {self._range}"
            raise EnvironmentFault(f"harbor: {task.name}: tests/test.sh left {what} {_end(done)}")
        return reward, f"exit {done.exit_code}"


@dataclass(frozen=True, slots=True)
class Shell:
    """Commands in a place."""

    work: Workspace
    place: TaskEnvironment
    path: str
    """In front of PATH."""
    command_s: float

    async def run(
        self, command: str, seconds: float = 0.0, more: Mapping[str, str] | None = None, at: str = ""
    ) -> Finished:
        known = {"HOME": "/box/work", **self.place.variables, **(more or {})}
        front = f"export PATH={self.path}:$PATH; " if self.path else ""
        typed = f"{front}cd {shlex.quote(at or self.place.workdir)}\n{command}"
        return await self.work.exec(typed, timeout_s=seconds or self.command_s, environment=known)

    async def lay_out(self, tree: FileTree, *folders: str) -> None:
        """Make directories, and files. Raises OSError."""
        names = " ".join(map(shlex.quote, folders))
        await self.run(f"cd /box/work && mkdir -p -- {names}", at="/")
        await self.work.lay_out(tree.files, tree.programs)

    async def content(self, path: str) -> bytes | None:
        try:
            return await self.work.read(path)
        except OSError:
            return None


def _named_outside(instruction: str, top: str) -> list[str]:
    """The names right below /tmp or the home directory that an instruction speaks of."""
    found = {name.rstrip(".") for name in _OUTSIDE.findall(instruction)}
    return sorted(found - {"", top, "tests", "logs"})


def _end(done: Finished) -> str:
    """Return how a command of the task ended, with the end of its output."""
    how = done.cause if done.ended is not None else f"exit {done.exit_code}"
    return f"({how}): {one_line((done.stderr or done.stdout)[-300:])}"


def _told(done: Finished) -> str:
    """Return the text that the policy reads of a command."""
    parts = [f"{part[:_TOLD // 2]}\n[...]\n{part[-_TOLD // 2 :]}" if len(part) > _TOLD else part
             for part in (done.stdout, done.stderr)]  # fmt: skip
    end = f"[exit {done.exit_code}]" if done.ended is None else f"[{done.ended}: {done.cause}]"
    return "\n".join(part for part in (*map(str.rstrip, parts), end) if part)
