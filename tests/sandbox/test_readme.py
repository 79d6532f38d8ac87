"""What sandbox/README.md and docs/sandbox say is so: the example runs, and each promise has the tests that it names."""

from __future__ import annotations

import ast
import asyncio
import json
import re

import pytest
from places import ROOT

from sandbox import Problem
from sandbox.cli import main
from sandbox.zoo import catalogue

README = (ROOT / "sandbox" / "README.md").read_text("utf-8")
THREATS = (ROOT / "docs" / "sandbox" / "threat-model.md").read_text("utf-8")
TESTS = {path.stem.removeprefix("test_"): path for path in (ROOT / "tests" / "sandbox").rglob("test_*.py")}


@pytest.mark.promise("examples")
def test_the_example_runs() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    asyncio.run(eval(compile(example, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names))
    assert getattr(names["judgement"], "verdict", None) == "AC"


def test_the_problem_file_is_a_whole_one() -> None:
    (text,) = re.findall(r"^`(\{.*\})`\.$", README, re.MULTILINE)
    assert Problem.from_json(json.loads(text)).id == "sum"


def test_every_command_is_listed_and_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    commands = re.search(r" (run \| .*?) \.\.\. ", said)
    assert commands is not None
    lines = re.findall(r"^sandbox (\S+(?: \| \S+)*)", README, re.MULTILINE)
    assert {name for line in lines for name in line.split(" | ")} == set(commands[1].split(" | "))


@pytest.mark.promise("documents")
def test_every_promise_of_the_threat_model_names_tests_that_exist() -> None:
    entries = {entry.id for entry in catalogue.entries()}
    rows = re.findall(r"^\| (.+) \| ([\d–, ]*) ?\| (.+) \|$", THREATS, re.MULTILINE)
    assert len(rows) > 30
    for promise, _, chunks in rows[1:]:
        for chunk in chunks.split("; "):
            file, _, names = chunk.partition(": ")
            text = TESTS[file].read_text("utf-8")
            for name in filter(None, names.split(", ")):
                assert name in entries or re.search(rf"^(async )?def test_\w*{name}", text, re.M), (promise, file, name)
