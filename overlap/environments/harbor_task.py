"""Harbor task directories as a task: ``data.task=harbor:DIR``, of one task or of a directory of them.

    instruction ──▶ the policy ⇄ a shell in /app, jailed ──▶ tests/test.sh ──▶ reward

The policy writes a command in a fenced block, reads what it did, and so on; an answer without one is its end. Then the
tests are laid out beside, and run in the same directory.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from overlap.core import LeftOut, Prompt
from overlap.environments.harbor_files import HarborFiles, UnsupportedTask, find_tasks, read_reward, read_task
from overlap.environments.scored import EnvironmentFault, Range, Seal, given_reward, refuse_command, scored
from overlap.errors import ConfigError, one_line
from overlap.task import Task, messages_prompt, task_options
from sandbox.core.nouns import Limits
from sandbox.rewards.extract import fenced_blocks

if TYPE_CHECKING:
    from overlap.config.fields import Config
    from overlap.server.chat import Chat
    from overlap.server.episodes import EpisodeSandbox
    from sandbox.core.nouns import Judgement
    from sandbox.session.files import Finished
    from sandbox.session.workspace import Workspace

SYSTEM = """You work in a shell, in the directory /app, to do what you are asked.
Answer with one command, or a few lines of them, in a block:
```bash
ls
```
You read what it printed, and answer again. Files stay between commands; variables, the directory you are in and
processes do not. When all is done, answer without a block."""
_SHELLS = ("", "bash", "sh", "shell")
"""Tags of a block that is a command."""
_LINKS = {"/app": "app", "/tests": "tests", "/logs": "logs"}
_TOLD = 4000
_OUTSIDE = re.compile(r"(?:/tmp|/dev/shm|/box/work|~|\$HOME|\$\{HOME\})/([\w.+-]+)")
_CLEAR = """cd /box/work || exit
for name in * .[!.]* ..?*; do
    case "$name" in KEPT) continue ;; esac
    [ -L "$name" ] || chmod -R u+rwx -- "$name" 2> /dev/null
    rm -rf -- "$name" || exit
done
mkdir -p app logs/verifier || exit
chmod u+rwx app 2> /dev/null
[ -x app ]"""
"""Removes what the policy left outside of /app: the home directory and /tmp lie above the tests, and hold what shells,
interpreters and test runners load code from. Opens /app: in one that is closed, all that is to be gone seems gone."""
_REWARDS = ("logs/verifier/reward.txt", "logs/verifier/reward.json")


@dataclass(frozen=True)
class HarborOptions:
    """``data.options`` of such a task."""

    roots: str = ""
    """A directory that holds, by name of the task, the files of its image; such a task sees those in the place of the
    machine's tools, read-only, and what the image has in /app as its own copy."""
    readable: tuple[str, ...] = ()
    """Further paths of the machine that commands and tests may read."""
    path: str = ""
    """Directories in front of the PATH of commands and tests, such as the ``bin`` of a virtual environment."""
    heldout: int = 0
    """So many tasks, the last ones, to evaluate on."""
    reward_least: float | None = 0.0
    reward_most: float | None = 1.0
    """The range of rewards that count; any other is a fault of the environment. null: no bound."""
    command_s: float = 60.0
    """Wall time of a command at most, s."""
    system: str = ""
    """What the policy is told first; "": how to use the shell."""


class HarborTask(Task):
    """``harbor:DIR``."""

    options: ClassVar[type] = HarborOptions

    def __init__(self, folder: str, options: HarborOptions) -> None:
        self._folders = find_tasks(Path(folder)) if folder else []
        if not self._folders:
            way_out = "there is no task (instruction.md, task.toml, tests/test.sh) in it, nor in a directory of it"
            if folder and not Path(folder).is_dir():
                way_out = "there is no such directory: name one with a task, or with directories of tasks"
            raise ConfigError("data.task", f"harbor:{folder}", way_out)
        if not 0 <= options.heldout < len(self._folders):
            way_out = f"there are {len(self._folders)} tasks: hold fewer out, so that one is left to train on"
            raise ConfigError("data.options.heldout", options.heldout, way_out)
        self._range = Range(options.reward_least, options.reward_most)
        self._options, self._system, self._seal = options, options.system or SYSTEM, Seal()

    @classmethod
    def from_config(cls, cfg: Config) -> HarborTask:
        refuse_command(cfg)
        return cls(cfg.data.task.partition(":")[2], task_options(cfg, cls))

    def prompts(self, tokenizer: Any, split: str) -> Sequence[Prompt | LeftOut]:
        late = len(self._folders) - self._options.heldout
        folders = self._folders[:late] if split == "train" else self._folders[late:]
        return [self._prompt(tokenizer, folder) for folder in folders]

    def _prompt(self, tokenizer: Any, folder: Path) -> Prompt | LeftOut:
        try:
            found = read_task(folder, self._options.roots)
        except UnsupportedTask as refused:
            return LeftOut(str(folder), refused.reason, refused.detail)
        asked = [{"role": "system", "content": self._system}, {"role": "user", "content": found.instruction}]
        return messages_prompt(tokenizer, folder.name, asked, data={"row": str(folder), "seal": self._seal})

    async def rollout(self, prompt: Prompt, chat: Chat, sandbox: EpisodeSandbox) -> str:
        task = read_task(Path(prompt.data["row"]), self._options.roots)
        longest = max(task.verifier_s, self._options.command_s)
        limits = Limits(
            cpu_s=longest, wall_s=longest, memory_bytes=task.memory_bytes, processes=256, open_files=1024,
            file_bytes=task.work_bytes, output_bytes=min(task.work_bytes, Limits().output_bytes),
        )  # fmt: skip
        work = sandbox.workspace(
            root=task.root, readable=self._options.readable, links=_LINKS, work_bytes=task.work_bytes, limits=limits
        )
        try:
            await self._lay_out(work, "app", task.environment)
        except OSError as error:
            raise EnvironmentFault(f"harbor: {task.name}: its files cannot be laid out: {error.strerror}") from error
        messages: list[Any] = [{"role": "system", "content": self._system}]
        messages.append({"role": "user", "content": task.instruction})
        while True:
            reply = await chat.say(messages)
            command = next((b.code for b in fenced_blocks(reply.text) if b.closed and b.tag in _SHELLS), None)
            if command is None:
                break
            done = await self._run(work, command, self._options.command_s)
            messages += [reply.message, {"role": "user", "content": _told(done)}]
        reward, how = await self._judge(work, task)
        return scored(reply.text, reward, prompt.data, self._range, tests=how)

    def reward(self, prompt: Prompt, answer: str, judgement: Judgement | None) -> float | None:
        return given_reward(answer, prompt.data)

    async def _judge(self, work: Workspace, task: HarborFiles) -> tuple[float, str]:
        """The reward, and how the tests ended. Raises EnvironmentFault where they give none."""
        clear = _CLEAR.replace("KEPT", "|".join(map(shlex.quote, ["app", *_named_outside(task.instruction)])))
        cleared = await self._run(work, clear, self._options.command_s, at="/")
        try:
            await self._lay_out(work, "tests", task.tests)
        except OSError as error:
            return 0.0, f"no room for the tests: {error.strerror}"
        if cleared.exit_code != 0:
            return 0.0, "what stands in the place of the tests cannot be removed"
        done = await self._run(work, "bash /tests/test.sh", task.verifier_s, task.variables)
        if done.ended is not None:  # what the policy left is too slow, or too much, for them
            return 0.0, done.cause
        left = [await _content(work, path) for path in _REWARDS]
        reward = read_reward(left[0], left[1], self._range)
        if reward is None:
            said = one_line((done.stderr or done.stdout)[-300:])
            found, what = next((x for x in left if x and x.strip()), b""), "no reward"
            if found:
                what = f"{one_line(repr(found)[1:], 80)}, no reward {self._range}"
            raise EnvironmentFault(f"harbor: {task.name}: tests/test.sh left {what} (exit {done.exit_code}): {said}")
        return reward, f"exit {done.exit_code}"

    async def _lay_out(self, work: Workspace, above: str, files: Any) -> None:
        await self._run(work, f"mkdir -p /box/work/{above}", self._options.command_s, at="/")
        await work.lay_out({f"{above}/{name}": data for name, data in files.items()})

    async def _run(self, work: Workspace, command: str, seconds: float, more: Any = None, at: str = "/app") -> Finished:
        known = {"HOME": "/box/work", **(more or {})}
        front = f"export PATH={self._options.path}:$PATH; " if self._options.path else ""
        return await work.exec(f"{front}cd {at}\n{command}", timeout_s=seconds, environment=known)


def _named_outside(instruction: str) -> list[str]:
    """The names right below /tmp or the home directory that an instruction speaks of."""
    found = {name.rstrip(".") for name in _OUTSIDE.findall(instruction)}
    return sorted(found - {"", "app", "tests", "logs"})


async def _content(work: Workspace, path: str) -> bytes | None:
    try:
        return await work.read(path)
    except OSError:
        return None


def _told(done: Finished) -> str:
    """What the policy reads of a command."""
    parts = [f"{part[:_TOLD // 2]}\n[...]\n{part[-_TOLD // 2 :]}" if len(part) > _TOLD else part
             for part in (done.stdout, done.stderr)]  # fmt: skip
    end = f"[exit {done.exit_code}]" if done.ended is None else f"[{done.ended}: {done.cause}]"
    return "\n".join(part for part in (*map(str.rstrip, parts), end) if part)
