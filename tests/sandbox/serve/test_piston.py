"""Piston's routes, and open-r1's graders over them."""

from __future__ import annotations

import pytest
from serving import Served, answering, served

from sandbox import ProgramRun

SUM = "print(sum(map(int, input().split())))"
CPP = "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }"


async def piston(s: Served, language: str, *files: tuple[str, str], **more: object) -> dict:
    listed = [{"name": name, "content": content} for name, content in files]
    answered = await s.ask("/api/v2/execute", {"language": language, "version": "*", "files": listed, **more})
    assert answered.status == 200, answered.body
    return answered.json


@served()
async def test_piston_runs_a_program_with_its_files_stdin_and_arguments(s: Served) -> None:
    code = "import sys, util\nprint(util.x, input(), sys.argv[1:], open('data.txt').read())"
    files = (("prog.py", code), ("util.py", "x = 5"), ("data.txt", "d"))
    found = await piston(s, "python", *files, stdin="in", args=["a", "b"])
    assert found["language"] == "python"
    assert found["version"].startswith("3.")
    ran = found["run"]
    assert (ran["stdout"], ran["stderr"], ran["code"], ran["signal"]) == ("5 in ['a', 'b'] d\n", "", 0, None)
    assert (ran["status"], "compile" in found) == (None, False)
    assert ran["output"] == ran["stdout"]


ENDS = [
    ("exit(3)", 3, None, "RE"),
    ("while True: pass", None, "SIGKILL", "TO"),
    ("import os; os.kill(os.getpid(), 11)", None, "SIGSEGV", "SG"),
    ("while True: print('x' * 99999)", None, "SIGXFSZ", "OL"),
    ("def f(:", 1, None, "RE"),
]


@served()
async def test_piston_says_how_a_program_ended(s: Served) -> None:
    for code, code_, signal, status in ENDS:
        ran = (await piston(s, "py", ("", code), run_timeout=500 if "while True: pass" in code else 5000))["run"]
        assert (ran["code"], ran["signal"], ran["status"]) == (code_, signal, status), code


@pytest.mark.compilers
@served()
async def test_piston_compiles(s: Served) -> None:
    found = await piston(s, "c++", ("main.cpp", CPP), stdin="3 4")
    assert (found["compile"]["code"], found["run"]["stdout"]) == (0, "7")
    found = await piston(s, "c++", ("main.cpp", "int main() { return x; }"))
    assert found["compile"]["code"] == 1
    assert "was not declared" in found["compile"]["stderr"]
    assert found["run"]["code"] is None


@pytest.mark.parametrize(("cause", "status"), [("cpu", "TO"), ("wall", "TO"), ("output", "OL"), ("memory", "SG")])
@answering()
async def test_piston_says_which_limit_ended_a_compiler(s: Served, monkeypatch, cause: str, status: str) -> None:
    async def run(*_: object, **__: object) -> ProgramRun:
        return ProgramRun("A", "cpp", "g++ 12", compiled=False, compile_log="slow", compile_cause=cause)

    monkeypatch.setattr(s.service.pool, "run", run)
    found = (await piston(s, "c++", ("main.cpp", CPP)))["compile"]
    assert (found["code"], found["signal"], found["status"], found["stderr"]) == (None, "SIGKILL", status, "slow")


CHECKER = """
import sys
given, answer, said = (open(path).read().split() for path in sys.argv[1:4])
print(int(sorted(said) == sorted(answer)))
"""


GRADED = [
    ("print('2 1')", CHECKER, "1"),
    ("print('2 1')", "", "0"),
    ("print('1 3')", CHECKER, "0"),
    ("exit(1)", "", "0"),
    ("print('1 3')", CHECKER + "if sorted(said) != sorted(answer): print('of', 1)", "0"),
    ("print('2 1')", CHECKER.replace("print(", "print(100 * ") + "# \N{ROCKET}", "1"),
]


@served()
async def test_open_r1s_grader_over_piston_says_1_or_0(s: Served) -> None:
    config = "TIME_LIMIT=2.0\nMEMORY_LIMIT=256.0\nINPUT_MODE=stdio"
    for code, checker, said in GRADED:
        files = [("main.python", code), ("input.txt", ""), ("correct_output.txt", "1 2"), ("grader_config", config)]
        if checker:
            files.insert(1, ("checker.py", checker))
        found = await piston(s, "cf_python3", *files)
        assert (found["compile"]["code"], found["run"]["code"], found["run"]["stdout"]) == (0, 0, said)


@pytest.mark.parametrize(
    "line", ["MEMORY_LIMIT=inf", "MEMORY_LIMIT=nan", "TIME_LIMIT=nan", "TIME_LIMIT=-1", "TIME_LIMIT=x"]
)
@served()
async def test_a_limit_of_open_r1s_grader_that_is_no_positive_number_is_refused(s: Served, line: str) -> None:
    given = {"main.python": "print(1)", "input.txt": "", "correct_output.txt": "1", "grader_config": line}
    body = {"language": "python", "files": [{"name": name, "content": text} for name, text in given.items()]}
    answered = await s.ask("/api/v2/execute", body)
    assert (answered.status, line.partition("=")[0] in answered.error) == (400, True), answered.body


@served()
async def test_piston_lists_what_this_machine_has_and_refuses_what_it_has_not(s: Served) -> None:
    found = (await s.ask("/api/v2/runtimes")).json
    assert {"language", "version", "aliases"} == set(found[0])
    assert "python" in [each["language"] for each in found]
    answered = await s.ask("/api/v2/execute", {"language": "cms_ioi", "version": "*", "files": [{"content": ""}]})
    assert answered.status == 400
    assert "'cms_ioi'" in answered.error


@served()
async def test_a_limit_of_a_grader_is_a_number(s: Served) -> None:
    for config in ("MEMORY_LIMIT=inf", "MEMORY_LIMIT=nan", "TIME_LIMIT=x"):
        files = [("main.python", SUM), ("input.txt", ""), ("correct_output.txt", "1"), ("grader_config", config)]
        given = [{"name": name, "content": content} for name, content in files]
        answered = await s.ask("/api/v2/execute", {"language": "python", "version": "*", "files": given})
        assert answered.status == 400
        assert "must be a positive number" in answered.error


def named(*names: str) -> dict:
    return {"files": [{"name": name, "content": ""} for name in names]}


UNFIT_FOR_PISTON = [
    ({"files": []}, "files=[]"),
    ({"files": [{"name": "../x", "content": ""}]}, "files: '../x'"),
    ({"files": [{"content": "?", "encoding": "base64"}]}, "files[0].content='?'"),
    ({"files": [{"content": "zz", "encoding": "hex"}]}, "hexadecimal"),
    ({"files": [{"content": "", "encoding": "gzip"}]}, "utf8, base64 or hex"),
    (named("a/b", "/etc/x"), "files: '/etc/x'"),
    (named("a", ""), "files: ''"),
    (named("a", "b/.."), "files: 'b/..'"),
    (named("a", "x\0"), "is no name below a directory"),
    (named("a.py", "a.py/b"), "'a.py' is there twice, as a file and as a folder"),
    ({"files": [{"content": ""}], "run_timeout": -1}, "run_timeout=-1"),
    ({"files": [{"content": ""}], "run_memory_limit": "1"}, "run_memory_limit='1'"),
]


@served()
async def test_piston_refuses_what_cannot_be_run(s: Served) -> None:
    for body, says in UNFIT_FOR_PISTON:
        answered = await s.ask("/api/v2/execute", {"language": "python", "version": "*", **body})
        assert (answered.status in (400, 422), says in answered.error) == (True, True), answered.body


@served()
async def test_two_names_of_one_file_are_refused_with_both(s: Served) -> None:
    """The second would take the place of the first."""
    for pair in (("a", "a"), ("a", "./a"), ("b/a.py", "b//a.py"), ("b/../a", "a"), ("", "main.py")):
        answered = await s.ask("/api/v2/execute", {"language": "python", "version": "*", **named(*pair)})
        first, second = (name or "main.py" for name in pair)
        assert (answered.status, f"files: {first!r} and {second!r}: are the same file" in answered.error) == (400, True)


@served()
async def test_a_name_may_begin_with_two_dots(s: Served) -> None:
    found = await piston(s, "python", ("", "print(open('..a').read())"), ("..a", "in"))
    assert found["run"]["stdout"] == "in\n"
