"""README and docs: sizes, links, paths, fields, commands and code blocks are what the repository has."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import re
import shlex
from pathlib import Path

import pytest
from places import ROOT

from overlap import cli
from overlap.commands.parsers import add_commands
from overlap.commands.starting import STARTER
from overlap.config.fields import Config
from overlap.config.foreign import foreign_names

PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "sandbox/README.md")),
        *(ROOT / "docs").rglob("*.md"),
        STARTER / "README.md",
    ]
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[\w-]+)?\)")
PATH = re.compile(r"`((?:overlap|sandbox|recipes|scripts|tests|docs)/[\w./*{},-]+)`")
SECTIONS = {section.name: section for section in dataclasses.fields(Config)}
FIELD = re.compile(rf"`({'|'.join(SECTIONS)})\.([a-z_0-9]+)(?:=[^`]*)?`")
FILES = {"cfg", "py", "json", "jsonl", "log", "png", "yaml"}  # data.py is a file

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    return [body for name, body in BLOCK.findall(page.read_text("utf-8")) if name == language]


@pytest.mark.parametrize(("page", "most"), [("README.md", 8_192), ("sandbox/README.md", 6_144)])
def test_the_front_pages_stay_short(page: str, most: int) -> None:
    assert (ROOT / page).stat().st_size <= most


@pytest.mark.promise("documents")
@pages
def test_every_link_leads_to_a_file(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text("utf-8")) if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.promise("documents")
@pages
def test_every_path_is_there(page: Path) -> None:
    for path in PATH.findall(page.read_text("utf-8")):
        assert next(ROOT.glob(re.sub(r"\{[^}]*\}", "*", path)), None), path


@pytest.mark.promise("documents")
@pages
def test_every_field_is_one_of_the_configuration(page: Path) -> None:
    default = Config()
    for section, name in FIELD.findall(page.read_text("utf-8")):
        if f"{section}.{name}" in foreign_names() and page.name == "config.md":
            continue
        assert name in FILES or hasattr(getattr(default, section), name), f"{section}.{name}"


@pytest.mark.promise("examples")
@pages
def test_every_python_block_compiles(page: Path) -> None:
    for body in blocks(page, "python"):
        compile(body, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def commands() -> list[str]:
    lines = [line for page in PAGES for body in blocks(page, "bash") for line in body.replace("\\\n", " ").splitlines()]
    return sorted({line.partition("  #")[0].strip() for line in lines if line.strip() and not line.startswith("#")})


@pytest.mark.promise("documents")
@pytest.mark.parametrize("command", commands())
def test_every_command_can_be_typed(command: str) -> None:
    """Scripts are there, and the command line takes the words and fields; what a command does is tested elsewhere."""
    words = shlex.split(command)
    if words[0] == "bash":
        assert (ROOT / words[1]).is_file()
    elif words[0] == "overlap" and "--help" not in words:
        args = cli._parse(words[1:])
        for override in getattr(args, "overrides", []):
            section, _, name = override.partition("=")[0].partition(".")
            assert hasattr(getattr(Config(), section), name), override
        if config := getattr(args, "config", None):
            assert (ROOT / config).is_file() or (STARTER / config).is_file()
    else:
        assert words[0] in ("overlap", "sandbox", "source", "python", "cd", "pip")


@pytest.mark.promise("documents")
def test_every_command_has_its_row() -> None:
    add_commands(commands := argparse.ArgumentParser().add_subparsers())
    rows = [line for line in (ROOT / "docs/quickstart.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    named = {name for line in rows for name in re.findall(r"`overlap ([\w-]+)", line)}
    assert sorted(commands.choices) == sorted(named)


def test_the_documents_stay_short() -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md")]
    assert len(texts) <= 21
    assert sum(len(text.encode()) for text in texts) <= 190_000


@pytest.mark.promise("examples")
def test_the_example_of_a_sandbox_alone_runs() -> None:
    (example,) = (body for body in blocks(ROOT / "README.md", "python") if "sandbox.judge" in body)
    exec(compile(example, "README.md", "exec"), {})


@pytest.mark.promise("examples")
def test_the_example_of_a_task_has_prompts_rewards_and_a_configuration() -> None:
    from chats import Letters

    (example,) = (body for body in blocks(ROOT / "README.md", "python") if "class Brief" in body)
    names: dict = {"__name__": "readme"}
    exec(compile(example, "README.md", "exec"), names)
    task = names["Brief"]()
    prompts = task.prompts(Letters(), "train")
    assert len(prompts) == 4
    assert [task.reward(prompts[0], answer, None) for answer in ("384,400 km", "far")] == [1.0, 0.0]
