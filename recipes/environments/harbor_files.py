"""A Harbor task as its directory states it, and what of it cannot be done here.

instruction.md          what the policy is asked
task.toml               limits, variables, places: recipes/environments/harbor_schema.py
environment/            files of the working directory; an image only as an extracted directory
tests/test.sh           judges what is there, and writes /logs/verifier/reward.json or reward.txt
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from recipes.environments.harbor_schema import EnvironmentSection, TaskToml
from recipes.environments.scored import SHARE, Range, is_finite
from sandbox.core.nouns import MIB

_SERVICES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_NUMBER = re.compile(rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_CANARY = re.compile(r"\s*(?:<!--.*canary.*-->|#.*canary.*)\s*", re.IGNORECASE)
_SYSTEM = {*"bin boot box dev etc lib lib32 lib64 libx32 logs proc run sbin sys tests tmp usr var".split()}  # noqa: SIM905
_FILES_MAX, _BYTES_MAX = 2000, 64 * MIB


class UnsupportedTask(Exception):
    """A task asks for a feature that is not supported here: a few words, and the detail."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class FileTree(NamedTuple):
    """Files by relative name, and the names of the executable ones."""

    files: Mapping[str, bytes]
    programs: Set[str]

    def below(self, folder: str) -> FileTree:
        files = {f"{folder}/{name}": data for name, data in self.files.items()}
        return FileTree(files, {f"{folder}/{name}" for name in self.programs})

    def with_files(self, other: FileTree) -> FileTree:
        return FileTree({**self.files, **other.files}, {*self.programs - other.files.keys(), *other.programs})

    def parts(self, names: Sequence[str], without: Sequence[str] = ()) -> FileTree:
        """The files of these names, and those below them."""
        files = {
            file: data
            for file, data in self.files.items()
            if file not in without and any(file == name or file.startswith(f"{name}/") for name in names)
        }
        return FileTree(files, self.programs & files.keys())


NO_FILES: Final = FileTree({}, frozenset())


@dataclass(frozen=True, slots=True)
class TaskEnvironment:
    """The environment in which commands run: the policy's commands, or the tests."""

    section: EnvironmentSection
    root: str | None
    """A directory that holds the image's files."""
    workdir: str
    tree: FileTree
    """Files of the work directory, by names below it."""
    variables: Mapping[str, str]

    @property
    def top(self) -> str:
        """The first part of the working directory's path: the files below it are the episode's own."""
        return self.workdir.split("/")[1]


@dataclass(frozen=True, slots=True)
class HarborFiles:
    """One task."""

    name: str
    instruction: str
    toml: TaskToml
    place: TaskEnvironment
    tests: FileTree
    verifier: TaskEnvironment | None
    """The place of the tests; None: the policy's."""
    verifier_variables: Mapping[str, str]
    artifacts: tuple[str, ...]
    """Names of files and directories that are copied from the policy's work directory to the tests' own place."""


def find_tasks(folder: Path) -> list[Path]:
    """The directory itself where it is a task, or else those below it that are, by name."""
    if (folder / "instruction.md").is_file() or (folder / "task.toml").is_file():
        return [folder]
    return sorted({path.parent for name in ("instruction.md", "task.toml") for path in folder.glob(f"*/{name}")})


def read_task(folder: Path, roots: str, offline: bool = False) -> HarborFiles:
    """Raises UnsupportedTask."""
    toml = _read_toml(folder, offline)
    for name in ("trajectory.json", "tests/.harborignore"):
        if (folder / name).exists():
            raise UnsupportedTask(f"{name} is not supported", str(folder))
    try:
        instruction = (folder / "instruction.md").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UnsupportedTask("a file of the task cannot be read", str(error)) from error
    root = _image(folder, "environment", toml.environment.docker_image, roots)
    place = _place(toml.environment, "environment", root, _content(folder / "environment"))
    tests, verifier = _content(folder / "tests"), None
    if toml.verifier.separate:
        tests, verifier = _separate(folder, toml, roots, place)
    if "test.sh" not in tests.files:
        raise UnsupportedTask("no tests/test.sh", str(folder))
    return HarborFiles(
        name=folder.name,
        instruction=_without_canary(instruction),
        toml=toml,
        place=place,
        tests=FileTree(tests.files, {*tests.programs, "test.sh"}),
        verifier=verifier,
        verifier_variables=_resolved(toml.verifier.env, "verifier.env"),
        artifacts=_artifacts(toml, place) if verifier else (),
    )


def _read_toml(folder: Path, offline: bool) -> TaskToml:
    try:
        given = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
        return TaskToml.model_validate(given, context={"offline": offline})
    except ValidationError as error:
        (first, *_) = error.errors()
        where = ".".join(map(str, first["loc"]))
        what = "is no field of Harbor's schema 1.4" if first["type"] == "extra_forbidden" else first["msg"]
        raise UnsupportedTask(f"{where} {what}", f"{folder}/task.toml: {first['input']!r}") from error
    except (OSError, ValueError) as error:
        raise UnsupportedTask("a file of the task cannot be read", str(error)) from error


def _separate(folder: Path, toml: TaskToml, roots: str, place: TaskEnvironment) -> tuple[FileTree, TaskEnvironment]:
    """The tests and their own place. One with an image of its own has its tests in the image."""
    own = toml.verifier.environment
    image = own.docker_image if own else None
    if image is None and not _contexts(folder / "tests"):
        files = _content(folder / "environment")
        return _content(folder / "tests"), _place(own or toml.environment, "verifier.environment", place.root, files)
    root = _image(folder, "tests", image, roots, ".verifier")
    assert root is not None
    verifier = _place(own or toml.environment, "verifier.environment", root, NO_FILES)
    return _content(Path(root) / "tests"), verifier


def _contexts(folder: Path) -> list[str]:
    return [name for name in ("Dockerfile", *_SERVICES) if (folder / name).exists()]


def _image(folder: Path, context: str, image: str | None, roots: str, suffix: str = "") -> str | None:
    """The directory with the image's files. Raises UnsupportedTask where it needs an image and has none."""
    files = _contexts(folder / context)
    if files and files[-1] in _SERVICES:
        raise UnsupportedTask("services of a compose file are not supported", f"{folder}/{context}/{files[-1]}")
    extracted = Path(roots) / f"{folder.name}{suffix}" if roots else None
    if extracted is not None and extracted.is_dir():
        return str(extracted.resolve())
    if needs := [*files, *([image] if image else [])]:
        way_out = f"extract it (docker export) into a directory {folder.name}{suffix}, and name the one above in "
        whose = "its tests need an image" if suffix else "it needs an image"
        raise UnsupportedTask(whose, f"{folder}: {context}: {needs[0]}; {way_out}data.options.roots")
    return None


def _place(section: EnvironmentSection, name: str, root: str | None, files: FileTree) -> TaskEnvironment:
    workdir = os.path.normpath(section.workdir or "/app")
    parts = PurePosixPath(workdir).parts
    if len(parts) < 2 or parts[0] != "/" or parts[1] in _SYSTEM:
        raise UnsupportedTask(f"{name}.workdir is no directory below one of the task's own, such as /app", workdir)
    own = _content(Path(root) / parts[1]) if root else NO_FILES
    kept = FileTree({file: data for file, data in files.files.items() if file != "Dockerfile"}, files.programs)
    tree = own.below(parts[1]).with_files(kept.below(workdir[1:]))
    return TaskEnvironment(section, root, workdir, tree, _resolved(section.env, f"{name}.env"))


def _resolved(variables: Mapping[str, str], name: str) -> dict[str, str]:
    """With ``${VAR}`` and ``${VAR:-x}`` from the environment of the run, where they are the whole of a value."""
    found = {}
    for key, value in variables.items():
        template = _TEMPLATE.fullmatch(value)
        if template and template[1] not in os.environ and template[2] is None:
            raise UnsupportedTask(f"{name}.{key} needs the variable {template[1]}", "set it where the run is started")
        found[key] = os.environ.get(template[1], template[2] or "") if template else value
    return found


def _artifacts(toml: TaskToml, place: TaskEnvironment) -> tuple[str, ...]:
    """Return the task's artifacts. Raises UnsupportedTask for one at a path where the policy cannot write."""
    found = ["logs/artifacts"]
    for artifact in toml.artifacts:
        path = os.path.normpath(os.path.join(place.workdir, artifact.source))
        name = path.removeprefix("/tmp/")
        if name == path and path.split("/")[1] not in (place.top, "logs"):
            raise UnsupportedTask("artifacts of other places than the working directory, /logs and /tmp", path)
        found.append(name.lstrip("/"))
    return tuple(found)


def _content(folder: Path) -> FileTree:
    """Files below a directory by relative name; links that lead to a file count as it. Raises UnsupportedTask."""
    files: dict[str, bytes] = {}
    programs, size = set(), 0
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file():
            name = str(path.relative_to(folder))
            files[name] = path.read_bytes()
            programs |= {name} if path.stat().st_mode & 0o100 else set()
            size += len(files[name])
        if len(files) > _FILES_MAX or size > _BYTES_MAX:
            raise UnsupportedTask(f"more than {_FILES_MAX} files or {_BYTES_MAX >> 20} MiB in a directory", str(folder))
    return FileTree(files, programs)


def _without_canary(text: str) -> str:
    """Remove the lines in front that mark a benchmark's text for collectors of training data."""
    lines = text.split("\n")
    while lines and _CANARY.fullmatch(lines[0]):
        lines.pop(0)
    return "\n".join(lines).lstrip("\n")


def read_reward(mapping: bytes | None, text: bytes | None, within: Range = SHARE) -> float | None:
    """Return the reward of ``reward.json`` or, without it, of ``reward.txt``; None unless it is a number ``within`` the
    range. Of several named rewards "reward" counts, or else their mean, each of them within.
    """
    found: Any
    try:
        if mapping is not None:
            found = json.loads(mapping)
        else:
            found = float(text) if text and _NUMBER.fullmatch(text.strip()) else None
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
