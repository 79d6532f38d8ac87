"""open-r1's router: scripts whose last value is the reward."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest
from serving import Served, served

from sandbox.errors import WorkerDied
from sandbox.kernel import uids
from sandbox.serve.routes.open_r1 import taken_apart

SUM = "print(sum(map(int, input().split())))"

GRADER = """
    import subprocess
    import json

    def evaluate_code(code, test_cases):
        return 17

    code_snippet = {code}
    test_cases = json.loads({tests})

    evaluate_code(code_snippet, test_cases)
    """


def script(code: str, tests: list[dict]) -> str:
    return GRADER.format(code=json.dumps(code), tests=json.dumps(json.dumps(tests)))


@served()
async def test_open_r1s_scripts_are_judged_and_others_run_as_cells(s: Served) -> None:
    cells = ["x = 2\nprint('hi')\nx + 1", "  1 / 0", "import sys; sys.stderr.write('oh'); None", "while True: pass"]
    two = [{"input": "3 4", "output": "7"}, {"input": "1 1", "output": "2\n3"}]
    scripts = [script(SUM, two[:1]), script(SUM, two), script("def f(:", two), *cells]
    body = {"scripts": scripts, "languages": ["python"] * len(scripts), "timeout": 2, "request_timeout": 2}
    found = (await s.ask("/execute_batch", body)).json
    assert [each["text"] for each in found] == ["1.0", "0.5", "0.0", "3", None, None, None]
    assert [each["exception_str"] for each in found] == [None] * 7
    judged, *_, cell, wrong, told, endless = (each["execution"] for each in found)
    assert judged["results"] == [{"is_main_result": True, "text": "1.0"}]
    assert (cell["logs"], cell["error"]) == ({"stdout": ["hi\n"], "stderr": []}, None)
    assert (wrong["results"], wrong["error"]["name"]) == ([], "ZeroDivisionError")
    assert told["logs"]["stderr"] == ["oh"]
    assert endless["error"]["name"] == "TimeoutError"


@served()
async def test_a_script_that_we_could_not_judge_has_no_execution(s: Served, monkeypatch) -> None:
    async def dies(*_: object, **__: object) -> None:
        raise WorkerDied("a worker died")

    with monkeypatch.context() as patch:
        patch.setattr(s.service.pool, "judge", dies)
        found = (await s.ask("/execute_batch", {"scripts": [script(SUM, [{"input": "1", "output": "1"}])]})).json
    assert found == [{"execution": None, "exception_str": "WorkerDied: a worker died", "text": None}]


UNTOLD = [
    ([], "has no|no tests|can tell nothing"),
    ([{"input": "1", "output": ["2"]}], "must be text"),
    ([{"input": "1", "output": None}], "give the expected output"),
    ([{"input": ["1"], "output": "1"}], "must be text"),
    ([{"output": "1"}], "must be text"),
    ([{"input": "1", "output": ""}], "an empty program would pass"),
    (["1"], "must be a list of objects"),
    ([{"fn_name": "f", "input": "1", "output": "1", "type": "function_call"}], "call the function 'f'"),
]


@served()
async def test_tests_that_tell_nothing_of_a_program_give_no_reward(s: Served) -> None:
    scripts = [script(SUM, tests) for tests, _ in UNTOLD]
    found = (await s.ask("/execute_batch", {"scripts": scripts})).json
    for each, (_, says) in zip(found, UNTOLD, strict=True):
        assert (each["execution"], each["text"]) == (None, None), each
        assert re.search(says, each["exception_str"]), each


@served()
async def test_the_texts_of_a_script_stay_as_they_are(s: Served) -> None:
    scripts = ["given = '''a\n   \nb'''\nlen(given)", "\n  given = 'a'\n  len(given)"]
    found = (await s.ask("/execute_batch", {"scripts": scripts})).json
    assert [each["text"] for each in found] == ["7", "1"]


UNRUNNABLE = [
    ({"scripts": ["1"], "languages": ["r"]}, "languages: 'r'"),
    ({"scripts": ["1"], "languages": []}, "0 for 1 scripts"),
    ({"scripts": "1"}, "scripts='1'"),
]


@served()
async def test_scripts_that_cannot_run_are_refused(s: Served) -> None:
    for body, says in UNRUNNABLE:
        answered = await s.ask("/execute_batch", body)
        assert (answered.status, says in answered.error) == (422, True), answered.body


OTHER_FORM = """
import subprocess, sys

def reward(interpreter):
    done = subprocess.run([interpreter, "-c", {code}], input="3 4", capture_output=True, text=True)
    return float(done.returncode == 0 and done.stdout.split() == ["7"])

reward("python3") + reward("python") + reward(sys.executable)
"""
CLOSED = not uids.may_enter(os.path.realpath(sys.executable)) and os.geteuid() == 0
"""Whether programs of tier B are another user's, for whom the way to this interpreter is closed."""


@pytest.mark.parametrize("tier", ["A", "B"])
def test_a_script_of_another_form_starts_python_or_the_answer_says_that_it_cannot(tier: str) -> None:
    @served(isolation=tier)
    async def check(s: Served) -> None:
        scripts = [OTHER_FORM.format(code=json.dumps(code)) for code in (SUM, "print(8)")]
        found = (await s.ask("/execute_batch", {"scripts": scripts})).json
        if tier == "B" and CLOSED:
            assert [each["execution"] for each in found] == [None, None]
            assert all(
                "the script starts python3, which no program can here" in each["exception_str"] for each in found
            )
        else:
            assert [each["text"] for each in found] == ["3.0", "0.0"], found

    check()


def test_what_stands_beside_program_and_tests_of_a_grader_is_short_or_it_is_none() -> None:
    one = script(SUM, [{"input": "3 4", "output": "7"}])
    assert taken_apart(one) == (SUM, [{"input": "3 4", "output": "7"}])
    assert taken_apart("x = 1\n" * 20_000 + one) is None
    assert taken_apart(script("#" * 500_000 + '\n"', [])) == ("#" * 500_000 + '\n"', [])
    assert taken_apart(one.replace('"print', '"\\xprint')) is None
