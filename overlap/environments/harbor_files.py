"""A Harbor task as its directory states it, and what of it cannot be done here.

instruction.md          what the policy is asked
task.toml               limits; sections that ask for a service, a GPU or a second machine are refused
environment/            files of /app; an image only as a directory that somebody extracted (data.options.roots)
tests/test.sh           judges what is in /app, and writes /logs/verifier/reward.txt or reward.json
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlap.environments.scored import SHARE, Range, is_finite
from sandbox.core.nouns import MIB

_IMAGES = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_REFUSED = ("mcp_servers", "skills_dir", "docker_compose", "services", "tpu")
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_NUMBER = re.compile(rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_FILES_MAX, _BYTES_MAX = 2000, 64 * MIB


class UnsupportedTask(Exception):
    """What a task asks for and does not get here: a few words, and the detail."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class HarborFiles:
    """One task."""

    name: str
    instruction: str
    environment: Mapping[str, bytes]
    tests: Mapping[str, bytes]
    root: str | None
    """A directory that holds the image's files."""
    agent_s: float
    verifier_s: float
    memory_bytes: int
    work_bytes: int
    variables: Mapping[str, str]
    """Of the tests."""


def find_tasks(folder: Path) -> list[Path]:
    """The directory itself where it is a task, or else those below it that are, by name."""
    if (folder / "instruction.md").is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob("*/instruction.md"))


def read_task(folder: Path, roots: str) -> HarborFiles:
    """Raises UnsupportedTask."""
    try:
        config = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
        instruction = (folder / "instruction.md").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UnsupportedTask("a file of the task cannot be read", str(error)) from error
    root = _root(folder, config, roots)
    tests = _content(folder / "tests")
    if "test.sh" not in tests:
        raise UnsupportedTask("no tests/test.sh", str(folder))
    environment = _content(Path(root) / "app") if root and (Path(root) / "app").is_dir() else {}
    environment |= {name: data for name, data in _content(folder / "environment").items() if name not in _IMAGES}
    sizes, verifier = config.get("environment", {}), config.get("verifier", {})
    return HarborFiles(
        name=folder.name, instruction=instruction, environment=environment, tests=tests, root=root,
        agent_s=_seconds(config.get("agent", {})), verifier_s=_seconds(verifier),
        memory_bytes=_size(sizes, "memory", 2048 * MIB), work_bytes=min(_size(sizes, "storage", 256 * MIB), 1024 * MIB),
        variables={str(name): str(value) for name, value in verifier.get("env", {}).items()},
    )  # fmt: skip


def _root(folder: Path, config: Mapping[str, Any], roots: str) -> str | None:
    """The directory with the image's files. Raises UnsupportedTask where it needs an image and has none."""
    wanted = config.get("environment", {})
    for name in _REFUSED:
        if wanted.get(name):
            raise UnsupportedTask(f"environment.{name} is not supported", f"{folder}/task.toml")
    if wanted.get("gpus"):
        raise UnsupportedTask("environment.gpus is not supported", f"{folder}/task.toml")
    if config.get("steps") or config.get("verifier", {}).get("environment_mode", "shared") != "shared":
        raise UnsupportedTask(
            "several steps, or a verifier with an image of its own, are not supported", f"{folder}/task.toml"
        )
    extracted = Path(roots) / folder.name if roots else None
    if extracted is not None and extracted.is_dir():
        return str(extracted.resolve())
    images = [name for name in _IMAGES if (folder / "environment" / name).exists()]
    images += ["docker_image"] if wanted.get("docker_image") else []
    if images:
        way_out = f"extract it (docker export) into a directory {folder.name}, and name the one above in "
        raise UnsupportedTask("it needs an image", f"{folder}: {images[0]}; {way_out}data.options.roots")
    return None


def _content(folder: Path) -> dict[str, bytes]:
    """Files below a directory by relative name; links that lead to a file count as it. Raises UnsupportedTask."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
        if len(found) > _FILES_MAX or sum(map(len, found.values())) > _BYTES_MAX:
            raise UnsupportedTask(f"more than {_FILES_MAX} files or {_BYTES_MAX >> 20} MiB in a directory", str(folder))
    return found


def _seconds(section: Mapping[str, Any]) -> float:
    given = section.get("timeout_sec", 600.0)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        raise UnsupportedTask("timeout_sec is no positive number", str(given))
    return float(given)


def _size(section: Mapping[str, Any], name: str, default: int) -> int:
    """``memory_mb = 2048`` or ``memory = "2G"``."""
    if isinstance(number := section.get(f"{name}_mb"), int) and number > 0:
        return number * MIB
    given = str(section.get(name, "")).removesuffix("B").removesuffix("i")
    if not given:
        return default
    unit = _SIZES.get(given[-1:].upper(), 0)
    if not unit or not given[:-1].isdigit():
        raise UnsupportedTask(f"environment.{name} is no size", given)
    return int(given[:-1]) * unit


def read_reward(text: bytes | None, mapping: bytes | None, within: Range = SHARE) -> float | None:
    """What ``reward.txt`` or ``reward.json`` says; None where neither says a number ``within`` the range. Of several
    named rewards "reward" counts, or else their mean, each of them within.
    """
    found: Any
    try:
        if text and text.strip():
            found = float(text) if _NUMBER.fullmatch(text.strip()) else None
        else:
            found = json.loads(mapping or b"null")
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict):
        named = found.get("reward")
        values = [named] if named is not None else list(found.values())
    else:
        values = [found]
    if not values or not all(is_finite(value) and within.holds(value) for value in values):
        return None
    return sum(map(float, values)) / len(values)
