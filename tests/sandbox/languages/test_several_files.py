"""Programs of several files: where they start, and that they find one another."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest
from toolchains import need
from wide import every, wide

from sandbox import Case, InvalidProblem, InvalidProgram, Judgement, Limits, Pool, Problem, Program, Verdict
from sandbox.core.nouns import MIB
from sandbox.judging.judge import Judge
from sandbox.languages.layout import CompileError, lay_out
from sandbox.languages.table import find_language

LIMITS = Limits(cpu_s=10, wall_s=100, memory_bytes=256 * MIB)
PROBLEM = Problem("add", "stdio", (Case("3 4\n", "7"), Case("5 6\n", "11")), limits=LIMITS)
PROGRAMS = {
    "python": (
        ("main.py", "from lib.add import add\nimport util\nassert __file__ == 'main.py'\nprint(add(*util.read()))"),
        ("util.py", "def read():\n    return map(int, open(0).read().split())"),
        ("lib/add.py", "import operator\nadd = operator.add"),
    ),
    "c": (
        ("a.c", '#include "b.h"\n#include <stdio.h>\n'
         'int main(void) { int a, b; scanf("%d%d", &a, &b); printf("%d\\n", add(a, b)); }'),
        ("b.c", '#include "b.h"\nint add(int a, int b) { return a + b; }'),
        ("b.h", "int add(int a, int b);"),
    ),
    "cpp": (
        ("z.cc", '#include "lib/b.hpp"\n#include <iostream>\n'
         "int main() { int a, b; std::cin >> a >> b; std::cout << add(a, b) << std::endl; }"),
        ("lib/b.cpp", '#include "b.hpp"\nint add(int a, int b) { return a + b; }'),
        ("lib/b.hpp", "int add(int a, int b);"),
    ),
    "java": (
        ("Zeta.java", "public class Zeta { public static void main(String[] a) { System.out.println(0); } }"),
        ("Main.java", "import java.util.*;\npublic class Main { public static void main(String[] a) { "
         "var in = new Scanner(System.in); System.out.println(lib.Add.add(in.nextInt(), in.nextInt())); } }"),
        ("lib/Add.java", "package lib;\npublic class Add { public static int add(int a, int b) { return a + b; } }"),
    ),
    "javascript": (
        ("main.js", "const { add } = require('./lib/add')\n"
         "console.log(add(...require('fs').readFileSync(0, 'utf8').split(' ').map(Number)))"),
        ("lib/add.js", "exports.add = (a, b) => a + b"),
    ),
    "rust": (
        ("main.rs", "mod add;\nuse std::io::*;\nfn main() { let mut s = String::new(); stdin().read_to_string(&mut s)"
         ".unwrap(); println!(\"{}\", add::add(s.split_whitespace().map(|x| x.parse().unwrap()).collect())); }"),
        ("add.rs", "pub fn add(v: Vec<i64>) -> i64 { v.iter().sum() }"),
    ),
    "go": (
        ("b.go", 'package main\nimport "fmt"\nfunc main() { var a, b int; fmt.Scan(&a, &b); fmt.Println(add(a, b)) }'),
        ("a.go", "package main\nfunc add(a, b int) int { return a + b }"),
        ("test/c.go", "package test"),
    ),
}  # fmt: skip


def judged(judge: Judge, files: tuple[tuple[str, str], ...], language: str, entry: str = "") -> Judgement:
    need(language)
    return judge.judge(PROBLEM, Program(language=language, files=files, entry=entry))


@pytest.mark.promise("languages")
@pytest.mark.parametrize("language", PROGRAMS)
def test_several_files_are_one_program(judge: Judge, language: str) -> None:
    done = judged(judge, PROGRAMS[language], language)
    assert (done.verdict, done.passed) == (Verdict.AC, 2), done


@pytest.mark.parametrize("language", ["python", "c", *map(wide, [*PROGRAMS][2:])])
def test_what_is_missing_or_wrong_is_a_compile_error_or_a_crash(judge: Judge, language: str) -> None:
    files = tuple(
        (name, text) for name, text in PROGRAMS[language] if not name.startswith(("lib/", "b.c", "add", "a.go"))
    )
    done = judged(judge, files, language)
    assert done.verdict is (Verdict.RE if language in ("python", "javascript") else Verdict.CE)


@pytest.mark.parametrize(
    ("names", "entry", "start"),
    [
        (("b.py", "a.py"), "", "a.py"),
        (("b.py", "a.py", "Main.py"), "", "Main.py"),
        (("MAIN.py", "Main.py", "main.py"), "", "main.py"),
        (("b.py", "x/main.py"), "", "x/main.py"),
        (("a.py", "__main__.py", "__init__.py"), "", "__main__.py"),
        (("b.py", "a.py", "main.py"), "b.py", "b.py"),
        (("x/b.py", "y.py", "readme.txt"), "", "y.py"),
        (("only.py", "data.txt"), "", "only.py"),
    ],
)
def test_where_a_program_starts(names: tuple[str, ...], entry: str, start: str) -> None:
    program = Program(files=tuple((name, f"# {name}") for name in names), entry=entry)
    layout = lay_out(find_language("python"), program)
    assert (layout.main, layout.source, layout.compiled) == (start, f"# {start}", (start,))


def test_java_starts_in_the_class_that_is_named(judge: Judge) -> None:
    files = (
        ("A.java", "public class A { public static void main(String[] a) { System.out.println(1); } }"),
        ("B.java", "import java.util.*;\npublic class B { public static void main(String[] a) { "
         "var in = new Scanner(System.in); System.out.println(in.nextInt() + in.nextInt()); } }"),
    )  # fmt: skip
    assert judged(judge, files, "java").verdict is Verdict.WA
    assert judged(judge, files, "java", "B").verdict is Verdict.AC
    assert "no class C has a main" in judged(judge, files, "java", "C").compile_log


def test_no_place_to_start_is_the_programs_fault(judge: Judge) -> None:
    with pytest.raises(CompileError, match=r"\.py"):
        lay_out(find_language("python"), Program(files=(("a.txt", ""),)))
    done = judged(judge, (("a.py", ""), ("b.py", "")), "python", "c.py")
    assert (done.verdict, done.compile_log) == (Verdict.CE, "entry='c.py' is none of its sources: a.py, b.py")


@pytest.mark.parametrize(
    ("language", "name"),
    [*(("java", name) for name in ("Launch.java", "Compile.java/x.java", "main.jar", "main.jar/x")), ("c", "main/x")],
)
def test_a_file_in_the_place_of_one_of_the_judges_is_the_programs_fault(judge: Judge, language: str, name: str) -> None:
    done = judged(judge, (*PROGRAMS[language], (name, "")), language)
    assert done.verdict is Verdict.CE
    assert name.partition("/")[0] in done.compile_log


STRANGE = (
    "-oevil", "@o", "{x}", "{gcc:>300000000}", "{0.__class__}", "{source}", "{artifact}", "--require=x", "-", "--",
    "-c", "%s %n", "$HOME", "`id`", "a b", "'q' \"q\"", ";ls", "~", "*", "é", "=", "-start", "#x", "a\u200db",
    "_x", ".x",
)  # fmt: skip


def renamed(language: str, name: str) -> tuple[tuple[str, str], ...]:
    """The program of PROGRAMS that starts in a file of this name, in a folder of this name."""
    (main, text), *others = sorted(PROGRAMS[language], key=lambda pair: not pair[0].lower().startswith("main"))
    text = text.replace("'main.py'", repr(f"{name}/{name}.py"))
    files = [(f"{name}/{name}{main[main.rindex('.') :]}", text)]
    return (*files, *((f"{name}/{other}", content) for other, content in others))


@pytest.mark.parametrize(("language", "name"), every(9, list(product(PROGRAMS, STRANGE))))
def test_a_name_is_no_option_and_no_format(judge: Judge, language: str, name: str) -> None:
    files = renamed(language, name)
    entry = "" if language == "java" else files[0][0]
    done = judged(judge, files, language, entry)
    assert (done.verdict, done.passed) == (Verdict.AC, 2), (done.compile_log, done.cases)


@pytest.mark.parametrize("name", ["a\nb", "\t", "\x1b[31m", "a\x7f", "\x85", "\r"])
@pytest.mark.parametrize("language", ["python", "c", *map(wide, [*PROGRAMS][2:])])
def test_a_name_with_control_characters_is_the_programs_fault(judge: Judge, language: str, name: str) -> None:
    for files in (renamed(language, name), (*PROGRAMS[language], (name, ""))):
        done = judged(judge, files, language)
        assert done.verdict is Verdict.CE
        assert "control characters" in done.compile_log
        assert done.compile_log.isprintable()


@pytest.mark.parametrize("entry", ["\0", "\ud800", "a\nb", "x" * 200_000])
def test_no_entry_is_the_sandboxs_fault(judge: Judge, entry: str) -> None:
    for language in PROGRAMS:
        assert judged(judge, PROGRAMS[language], language, entry).verdict is Verdict.CE


def test_the_longest_names_fit_into_every_jail(tiered_judge: Judge) -> None:
    deep = "/".join(["\U0001f600" * 25] * 10)  # 1,009 bytes
    program = Program(files=(("main.py", "print(sum(map(int, input().split())))"), (deep, "")))
    assert tiered_judge.judge(PROBLEM, program).verdict is Verdict.AC
    with pytest.raises(InvalidProgram, match="no name below a directory"):
        Program(files=((f"{deep}/{'x' * 20}", ""),))


def test_a_cases_file_takes_the_place_of_a_programs_folder_and_the_other_way(judge: Judge) -> None:
    case = Case("", "7", files=(("words", "7"), ("in/words", "7")))
    source = "print(open('words').read() if open('in/words').read() == '7' else 0)"
    program = Program(files=(("main.py", source), ("words/x.py", ""), ("in", "")))
    assert judge.judge(Problem("p", "stdio", (case,)), program).verdict is Verdict.AC


def test_files_that_exclude_one_another_are_refused() -> None:
    for names in (("a.py", "a.py"), ("a", "a/b.py")):
        with pytest.raises(InvalidProgram, match="twice"):
            Program(files=tuple((name, "") for name in names))
    for many in (range(1001), ["x" * 200 + str(index) for index in range(900)]):
        with pytest.raises(InvalidProgram, match="more than"):
            Program(files=tuple((f"{name}.py", "") for name in many))
    with pytest.raises(InvalidProgram, match="source and files"):
        Program("pass", files=(("a.py", ""),))


def test_a_function_problem_takes_no_program_of_several_files(judge: Judge) -> None:
    problem = Problem("f", "function", (Case("[]", "1"),), fn_name="f")
    with pytest.raises(InvalidProblem, match="several files"):
        judge.judge(problem, Program(files=(("main.py", "def f(): return 1"),)))


def test_a_pool_tells_programs_apart_by_all_their_files() -> None:
    main = ("main.py", "import util\nprint(util.add(*map(int, input().split())))")
    files = [(main, ("util.py", f"def add(a, b): return a {sign} b")) for sign in "+-"]

    async def both() -> list[Verdict]:
        async with Pool(1) as pool:
            return [(await pool.judge(PROBLEM, Program(files=several))).verdict for several in files]

    assert asyncio.run(both()) == [Verdict.AC, Verdict.WA]
