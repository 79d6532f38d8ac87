"""SandboxFusion's wire: the same fields and words, and the answers that its own server owes its clients."""

from __future__ import annotations

import asyncio
from base64 import b64encode

import pytest
from serving import Served, answering, served
from toolchains import need

from sandbox import Judgement, ProgramRun, Verdict
from sandbox.errors import WorkerDied
from sandbox.serve.sandbox_fusion import run_code
from sandbox.serve.sandbox_fusion.submit import extracted


def b64(data: bytes) -> str:
    return b64encode(data).decode()


async def run(s: Served, code: str, **more: object) -> dict:
    answered = await s.ask("/run_code", {"code": code, "language": "python", **more})
    assert answered.status == 200, answered.body
    return answered.json


@pytest.mark.promise("serve-clients")
@served()
async def test_a_run_has_the_fields_and_words_of_sandbox_fusion(s: Served) -> None:
    found = await run(s, "print(input()[::-1])", stdin="abc", files={}, fetch_files=[], compile_timeout=10)
    seconds = found["run_result"].pop("execution_time")
    assert found == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": {"status": "Finished", "return_code": 0, "stdout": "cba\n", "stderr": ""},
        "executor_pod_name": None,
        "files": {},
    }
    assert seconds > 0


@pytest.mark.compilers
@served()
async def test_java_runs_with_its_asserts_as_it_does_there(s: Served) -> None:
    need("java")
    code = "class Main { public static void main(String[] a) { assert 1 + 1 == 3; } }"
    found = await run(s, code, language="java")
    assert (found["status"], found["run_result"]["return_code"]) == ("Failed", 1)
    assert "AssertionError" in found["run_result"]["stderr"]


ENDINGS = [
    ("import sys; print('x'); sys.exit(3)", "Finished", 3, "x\n"),
    ("def f(:", "Finished", 1, ""),
    ("print('x', flush=True)\nwhile True: pass", "TimeLimitExceeded", None, "x\n"),
    ("import os; os.kill(os.getpid(), 11)", "Finished", -11, ""),
    ("x = b'1' * (300 << 20)", "Finished", -9, ""),
    (r"import sys; sys.stdout.buffer.write(b'a\xff\x00b'); sys.exit(1)", "Finished", 1, "a\ufffd\0b"),
]


@served()
async def test_a_program_that_fails_is_failed_with_how_it_ended(s: Served) -> None:
    for code, status, exits, printed in ENDINGS:
        found = await run(s, code, run_timeout=1, memory_limit_MB=128)
        ran = found["run_result"]
        assert (found["status"], ran["status"], ran["return_code"], ran["stdout"]) == ("Failed", status, exits, printed)
        assert found["message"]


@served()
async def test_a_flood_is_cut_and_said_to_be(s: Served) -> None:
    found = await run(s, "while True: print('y' * 65536)", run_timeout=10)
    assert (found["status"], len(found["run_result"]["stdout"])) == ("Failed", 16 << 20)
    assert "output limit" in found["message"]
    assert "more was written" in found["message"]


@pytest.mark.parametrize(
    ("completion", "language", "code", "kind"),
    [
        ("```python\n1\n```\n```python\n2\n```", "python", "1\n", "fenced"),
        ("```python\n1\n```\n```cpp\n2\n```", "cpp", "2\n", "fenced"),
        ("```\n1\n```\n```text\n2\n```", "cpp", "1\n", "fenced"),
        ("```cpp\n1\n```\n```python\n2", "python", "1\n", "fenced"),
        ("so\n```python\n2\n", "python", "2\n", "incomplete_fenced"),
        ("print(1)", "python", "print(1)", "heuristic"),
        ("int main() {}", "cpp", "", "empty"),
        ("", "python", "", "empty"),
    ],
)
def test_the_program_of_an_answer_is_the_one_that_sandbox_fusion_takes(
    completion: str, language: str, code: str, kind: str
) -> None:
    assert extracted(completion, language) == (code, kind)


@served()
async def test_files_go_in_and_out_as_base64_and_null_ones_and_missing_ones_are_not_there(s: Served) -> None:
    raw = bytes(range(256))
    files = {"in/a.bin": b64(raw), "./b.txt": b64(b"hi"), "none": None}
    code = "import os\nopen('out', 'wb').write(open('in/a.bin', 'rb').read()[::-1])\nprint(sorted(os.listdir()))"
    found = await run(s, code, files=files, fetch_files=["./out", "b.txt", "missing"])
    assert found["run_result"]["stdout"] == "['b.txt', 'in', 'main.py', 'out']\n"
    assert found["files"] == {"./out": b64(raw[::-1]), "b.txt": b64(b"hi")}


REFUSED = [
    ({"language": "php"}, "language='php': cannot be run here; use one of python, c, cpp"),
    ({"code": None}, "code: is missing"),
    ({"run_timeout": 0}, "run_timeout=0"),
    ({"memory_limit_MB": True}, "memory_limit_MB=True"),
    ({"files": {"/etc/passwd": ""}}, "files: '/etc/passwd'"),
    ({"files": {"a": "?"}}, "files['a']='?'"),
    ({"fetch_files": ["../x"]}, "fetch_files: '../x'"),
    ({"stdin": "\ud800"}, "is no character"),
]


@served()
async def test_what_cannot_be_run_is_refused_with_the_name_of_the_field(s: Served) -> None:
    for given, says in REFUSED:
        answered = await s.ask("/run_code", {"code": "print(1)", "language": "python", **given})
        assert (answered.status, says in answered.error) == (422, True), answered.body


@pytest.mark.parametrize("path", ["/run_code", "/run_jupyter"])
@answering()
async def test_files_that_cannot_lie_beside_each_other_are_refused(s: Served, path: str) -> None:
    body = {"code": "print(1)", "language": "python", "cells": ["1"]}
    for names, status, says in (
        (("a", "./a"), 400, "files: 'a' and './a': are the same file"),
        (("a", "a/b"), 422, "'a' is there twice, as a file and as a folder"),
        (("a\0",), 422, "is no name below a directory"),
        (("a" * 300,), 422, "is no name below a directory"),
        (("",), 422, "files: ''"),
    ):
        answered = await s.ask(path, {**body, "files": dict.fromkeys(names, "YQ==")})
        assert (answered.status, says in answered.error) == (status, True), answered.body


@pytest.mark.compilers
@served()
async def test_a_program_that_does_not_compile_has_its_compilers_words(s: Served) -> None:
    broken = (await s.ask("/run_code", {"code": "int main() { return x; }", "language": "cpp"})).json
    assert (broken["status"], broken["run_result"]) == ("Failed", None)
    assert (broken["compile_result"]["status"], broken["compile_result"]["return_code"]) == ("Finished", 1)
    assert "was not declared" in broken["compile_result"]["stderr"]


@pytest.mark.parametrize(("cause", "status", "code"), [("cpu", "TimeLimitExceeded", None), ("memory", "Finished", 1)])
@answering()
async def test_a_compiler_that_takes_too_long_is_told_by_its_limit(s: Served, monkeypatch, cause, status, code) -> None:
    log = "the compiler exceeded its wall time limit"  # words of a program too
    ran = ProgramRun("A", "cpp", "g++ 12", compiled=False, compile_log=log, compile_cause=cause)
    judged = Judgement("p", Verdict.CE, (), 0, 1, False, "A", "cpp", "g++ 12", log, 0.0, 1.0, compile_cause=cause)

    async def run(*_: object, **__: object) -> ProgramRun:
        return ran

    async def judge(*_: object, **__: object) -> Judgement:
        return judged

    monkeypatch.setattr(s.service.pool, "run", run)
    monkeypatch.setattr(s.service.pool, "judge", judge)
    found = [(await s.ask("/run_code", {"code": "", "language": "cpp"})).json["compile_result"]]
    submitted = (await s.ask("/submit", oj("int", language="cpp"))).json
    found.append(submitted["tests"][0]["exec_info"]["compile_result"])
    assert [(each["status"], each["return_code"]) for each in found] == [(status, code)] * 2


@pytest.mark.promise("serve-clients")
@served()
async def test_our_fault_and_too_much_work_are_504_which_verl_asks_again(s: Served, monkeypatch) -> None:
    async def dies(*_: object, **__: object) -> None:
        raise WorkerDied("a worker died")

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    body = {"code": "print(1)", "language": "python", "run_timeout": 0.01, "compile_timeout": 0.01}
    with monkeypatch.context() as patch:
        patch.setattr(s.service.pool, "run", dies)
        assert (await s.ask("/run_code", body)).status == 504
    with monkeypatch.context() as patch:
        patch.setattr(run_code, "PATIENCE_S", 0.05)
        patch.setattr(s.service.pool, "run", never)
        answered = await s.ask("/run_code", body)
    assert answered.status == 504
    assert "more is asked for" in answered.error


@served()
async def test_a_notebook_keeps_its_state_and_shows_values_streams_and_errors(s: Served) -> None:
    cells = ["a = 123", "a", "print(a)", "import sys; n = sys.stderr.write('oh')", "raise RuntimeError('no')", "a + 1"]
    found = (await s.ask("/run_jupyter", {"cells": cells})).json
    assert found["status"] == "Success"
    assert (found["driver"]["status"], found["driver"]["return_code"]) == ("Finished", 0)
    errors = [[(error["ename"], error["evalue"]) for error in cell.pop("error")] for cell in found["cells"]]
    assert errors == [[], [], [], [], [("RuntimeError", "no")], []]
    assert [(cell["stdout"], cell["stderr"], cell["display"]) for cell in found["cells"]] == [
        ("", "", []),
        ("", "", [{"text/plain": "123"}]),
        ("123\n", "", []),
        ("", "oh", []),
        ("", "", []),
        ("", "", [{"text/plain": "124"}]),
    ]


@served()
async def test_a_notebook_has_files_and_whole_output(s: Served) -> None:
    raw = bytes(range(256)) * 5000
    cells = ["data = open('in/x', 'rb').read()\nn = open('y', 'wb').write(data[::-1])", "print('z' * 300_000)"]
    body = {"cells": cells, "files": {"in/x": b64(raw)}, "fetch_files": ["y", "none", "in/x"]}
    found = (await s.ask("/run_jupyter", body)).json
    assert found["status"] == "Success"
    assert found["cells"][1]["stdout"] == "z" * 300_000 + "\n"
    assert found["files"] == {"y": b64(raw[::-1]), "in/x": b64(raw)}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"cells": ["print(1)", "while True: pass", "print(2)"], "total_timeout": 1}, "TimeLimitExceeded"),
        ({"cells": ["print(1)", "import time; time.sleep(60)"], "cell_timeout": 0.5}, "TimeLimitExceeded"),
        ({"cells": ["print(1)", "import os; os._exit(3)", "print(2)"]}, "Finished"),
    ],
)
@served()
async def test_a_notebook_that_ends_early_failed_and_has_the_cells_so_far(s: Served, body, status) -> None:
    found = (await s.ask("/run_jupyter", body)).json
    assert (found["status"], found["driver"]["status"], len(found["cells"])) == ("Failed", status, 2)
    assert found["cells"][0]["stdout"] == "1\n"
    assert found["message"]


OJ = [
    {"input": {"stdin": "3 4\n"}, "output": {"stdout": "Seven\n"}},
    {"input": {"stdin": "1 1\n"}, "output": {"stdout": "two"}},
]


def oj(completion: str, language: str = "python", extra: dict | None = None, **config: object) -> dict:
    data = {"id": 1, "content": "", "test": OJ}
    config = {
        "dataset_type": "CommonOJDataset",
        "language": language,
        "provided_data": data,
        "extra": extra or {},
        **config,
    }
    return {"dataset": "anything", "id": 1, "completion": completion, "config": config}


RIGHT = "print({'3': 'Seven', '1': 'two'}[input()[0]])"
LOWER = RIGHT.replace("Seven", "seven")


SUBMITTED = [
    (oj(f"Look:\n```python\n{RIGHT}\n```\n"), True, [True, True]),
    (oj(RIGHT), True, [True, True]),
    (oj(LOWER), False, [False]),
    (oj(LOWER, extra={"run_all_cases": True}), False, [False, True]),
    (oj(LOWER, extra={"compare": "sf"}), True, [True, True]),
    (oj("import sys; sys.exit(1)"), False, [False]),
    (oj("def f(:"), False, [False]),
    (oj(""), False, [False]),
]


@pytest.mark.promise("serve-clients")
@served()
async def test_an_answer_to_a_problem_that_comes_with_it_is_judged(s: Served) -> None:
    for body, accepted, passed in SUBMITTED:
        answered = await s.ask("/submit", body)
        found = answered.json
        assert (answered.status, found["id"], found["accepted"]) == (200, 1, accepted)
        assert [test["passed"] for test in found["tests"]] == passed
        assert {test["exec_info"]["status"] for test in found["tests"] if not test["passed"]} <= {"Failed", "Success"}
        assert found["tests"][0]["test_info"] == OJ[0]


@served()
async def test_an_input_that_is_null_is_none(s: Served) -> None:
    test = {"input": {"stdin": None}, "output": {"stdout": "1"}}
    found = (await s.ask("/submit", oj("print(1)", provided_data={"test": [test]}))).json
    assert (found["accepted"], found["tests"][0]["test_info"]) == (True, test)


HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'from typing import List\n\n\ndef add(a: int, b: int) -> int:\n    """Add."""\n',
    "test": "METADATA = {}\ndef check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(0, 0) == 0\n",
    "entry_point": "add",
}
MBPP = {
    "id": 11,
    "test_list": "['assert add(1, 2) == 3', 'assert add(0, 0) == 0']",
    "labels": "{'test_setup_code': ''}",
}
CPP = {
    "name": "add",
    "language": "cpp",
    "prompt": "#include<assert.h>\nlong add(long a, long b) {\n",
    "tests": "}\nint main() {\n    auto candidate = add;\n    assert(candidate((1), (2)) == (3));\n}\n",
    "stop_tokens": ["\n}"],
}


def coding(kind: str, row: dict, completion: str, **extra: object) -> dict:
    config = {"dataset_type": kind, "provided_data": row, "extra": extra}
    return {"dataset": "x", "id": "7", "completion": completion, "config": config}


CODING = [
    (coding("HumanEvalDataset", HUMANEVAL, "    return a + b\n\n\nprint(add(1, 2))\ndef other("), True),
    (coding("HumanEvalDataset", HUMANEVAL, "    return a - b\n"), False),
    (coding("HumanEvalDataset", HUMANEVAL, "```python\ndef add(a, b): return a + b\n```", is_freeform=True), True),
    (coding("HumanEvalDataset", HUMANEVAL, "    import os; os._exit(0)\n"), False),
    (coding("MBPPDataset", MBPP, "```python\ndef add(a, b): return a + b\n```"), True),
    (coding("MBPPDataset", MBPP, "def add(a, b): return 3"), False),
    (coding("MBPPDataset", MBPP, "exit(0)"), False),
]


@served()
async def test_function_problems_are_judged_by_their_asserts(s: Served) -> None:
    for body, accepted in CODING:
        answered = await s.ask("/submit", body)
        assert answered.status == 200, answered.body
        assert answered.json["accepted"] is accepted, body


@pytest.mark.compilers
@served()
async def test_a_multipl_e_row_in_cpp_is_judged(s: Served) -> None:
    bodies = [coding("HumanEvalDataset", CPP, f"    return a {sign} b;\n}}\n") for sign in "+-"]
    assert [(await s.ask("/submit", body)).json["accepted"] for body in bodies] == [True, False]


UNJUDGED = [
    (oj("", language="php"), "language='php'"),
    (oj("", custom_extract_logic="x"), "custom_extract_logic"),
    (oj("", provided_data=None), "provided_data: is missing"),
    (oj("", dataset_type="PALMathDataset"), "PALMathDataset"),
    (oj("", provided_data={"test": []}), "cases=()"),
    (oj("", provided_data={"test": [{"input": {"a.txt": ""}, "output": {"stdout": "1"}}]}), "no other files"),
    (oj("", provided_data={"test": [{"input": {"stdin": ""}, "output": {}}]}), "'stdout' is missing"),
    (oj("", extra={"compare": "vaguely"}), "vaguely"),
    (coding("HumanEvalDataset", {**CPP, "language": "java"}, ""), "provided_data.language='java'"),
]


@served()
async def test_a_submission_that_cannot_be_judged_is_refused(s: Served) -> None:
    for body, says in UNJUDGED:
        answered = await s.ask("/submit", body)
        assert (answered.status, says in answered.error) == (422, True), answered.body


@served()
async def test_what_a_client_asks_beside(s: Served) -> None:
    rows = [HUMANEVAL, {**HUMANEVAL, "task_id": "HumanEval/1"}]
    config = {"provided_data": rows}
    assert (await s.ask("/v1/ping")).json == "pong"
    assert (await s.ask("/list_datasets")).json == ["CommonOJDataset", "HumanEvalDataset", "MBPPDataset"]
    assert (await s.ask("/list_ids", {"dataset": "x", "config": config})).json == ["HumanEval/0", "HumanEval/1"]
    prompts = (await s.ask("/get_prompts", {"dataset": "x", "config": config, "offset": 1})).json
    assert prompts == [{"id": "HumanEval/1", "prompt": HUMANEVAL["prompt"], "labels": {}}]
    one = await s.ask("/get_prompt_by_id", {"dataset": "x", "config": config, "id": "HumanEval/0"})
    assert one.json["id"] == "HumanEval/0"
    assert (await s.ask("/get_metrics", {"dataset": "x", "config": config, "results": []})).json == {}
    assert (await s.ask("/get_metrics_function", {"dataset": "x", "config": config})).json == {"function": None}
