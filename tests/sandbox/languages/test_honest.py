"""What contest programs do and a contest's judge accepts, by language: each failed here, or might have."""

from __future__ import annotations

import pytest
from toolchains import need
from wide import every, wide

from sandbox import Case, Limits, Problem, Program, Verdict
from sandbox.judging.judge import Judge
from sandbox.languages.cpp_call import argument_types

STD = "#include <bits/stdc++.h>\nusing namespace std;\n"
LIMITS = Limits(cpu_s=10, wall_s=60)
SUM = "5 3\n"  # the input of each, and 8 is its answer

CPP = {
    "std::thread": STD + "int main() { vector<thread> t; atomic<int> s{0};\n"
    "for (int i = 0; i < 8; i++) t.emplace_back([&] { s++; }); for (auto &x : t) x.join(); cout << s; }",
    "std::async": STD + "int main() { vector<future<int>> f; int s = 0;\n"
    "for (int i = 0; i < 8; i++) f.push_back(async(launch::async, [] { return 1; }));\n"
    "for (auto &x : f) s += x.get(); cout << s; }",
    "OpenMP": "#include <omp.h>\n#include <cstdio>\nint main() { int s = 0; omp_set_num_threads(4);\n"
    '#pragma omp parallel for reduction(+:s)\nfor (int i = 0; i < 8; i++) s += omp_in_parallel(); printf("%d", s); }',
    "a thread with a stack of its own size": "#include <pthread.h>\n#include <cstdio>\n"
    "void *f(void *p) { volatile char big[200 << 20]; big[0] = 8; *(int *)p = big[0]; return 0; }\n"
    "int main() { int x; pthread_attr_t a; pthread_attr_init(&a); pthread_attr_setstacksize(&a, 256 << 20);\n"
    'pthread_t t; if (pthread_create(&t, &a, f, &x)) return 1; pthread_join(t, 0); printf("%d", x); }',
    "a global that starts a thread": STD + "int s; thread t([] { s = 8; });\nint main() { t.join(); cout << s; }",
    "deep recursion": "#include <cstdio>\nint f(int n) { volatile char b[64]; b[0] = n;\n"
    'return n ? f(n - 1) + (b[0] == (char)n) - 1 : 8; }\nint main() { printf("%d", f(1500000)); }',
    "ONLINE_JUDGE": STD + 'int main() {\n#ifndef ONLINE_JUDGE\nfreopen("input.txt", "r", stdin);\n#endif\n'
    "int a, b; cin >> a >> b; cout << a + b; }",
    "a larger limit for the stack": "#include <sys/resource.h>\n#include <cstdio>\nint main() { rlimit r;\n"
    "getrlimit(RLIMIT_STACK, &r); r.rlim_cur = 512L << 20; if (r.rlim_max < r.rlim_cur) r.rlim_max = r.rlim_cur;\n"
    'puts(setrlimit(RLIMIT_STACK, &r) == 0 ? "8" : "no"); }',
    "/dev/stdin and /dev/stdout": "#include <cstdio>\nint main() { int a, b;\n"
    'freopen("/dev/stdin", "r", stdin); freopen("/dev/stdout", "w", stdout);\n'
    'scanf("%d%d", &a, &b); printf("%d", a + b); }',
    "stdin mapped": "#include <sys/mman.h>\n#include <sys/stat.h>\n#include <cstdio>\n#include <cstdlib>\n"
    "int main() { struct stat s; fstat(0, &s); char *e, *p = (char *)mmap(0, s.st_size, PROT_READ, MAP_PRIVATE, 0, 0);\n"  # noqa: E501
    'long a = strtol(p, &e, 10); printf("%ld", a + strtol(e, 0, 10)); }',
    'system("pause")': '#include <cstdlib>\n#include <cstdio>\nint main() { system("pause"); puts("8"); }',
}
C = {
    "pthreads": "#include <pthread.h>\n#include <stdio.h>\nvoid *f(void *p) { return (void *)1L; }\n"
    "int main() { pthread_t t[8]; long s = 0; void *r; for (int i = 0; i < 8; i++) if (pthread_create(t + i, 0, f, 0)) "
    'return 1;\nfor (int i = 0; i < 8; i++) pthread_join(t[i], &r), s += (long)r; printf("%ld", s); }',
    "ONLINE_JUDGE": '#include <stdio.h>\nint main() {\n#ifdef ONLINE_JUDGE\nputs("8");\n#endif\n}',
}
JAVA = {
    "ONLINE_JUDGE": 'class Main { public static void main(String[] a) { System.out.println(System.getProperty("ONLINE_JUDGE") '  # noqa: E501
    "!= null ? 8 : 0); } }",
    "a pool of threads": "import java.util.*; import java.util.concurrent.*;\nclass Main { public static void main("
    "String[] a) throws Exception { var e = Executors.newFixedThreadPool(16); var l = new ArrayList<Future<Integer>>();\n"  # noqa: E501
    "for (int i = 0; i < 8; i++) l.add(e.submit(() -> 1)); int s = 0; for (var f : l) s += f.get(); e.shutdown(); "
    "System.out.println(s); } }",
    "a thread with a large stack": "class Main { static int f(int n) { return n == 0 ? 8 : f(n - 1); }\npublic static void "  # noqa: E501
    'main(String[] a) { new Thread(null, () -> System.out.println(f(1000000)), "", 1L << 29).start(); } }',
    "a main that is inherited": "class B { public static void main(String[] a) { System.out.println(8); } }\n"
    "public class Main extends B {}",
    "an array that takes most of the heap": "class Main { public static void main(String[] a) { int[] x = new int["
    "80_000_000]; x[x.length - 1] = 8; System.out.println(x[x.length - 1]); } }",
    "a hook at the end": "class Main { public static void main(String[] a) { Runtime.getRuntime().addShutdownHook("
    "new Thread(() -> System.out.println(8))); } }",
    "deep recursion": "class Main { static int d(int n) { return n == 0 ? 0 : 1 + d(n - 1); } "
    "public static void main(String[] a) { System.out.println(d(200000) - 199992); } }",
}
JAVASCRIPT = {
    "deep recursion": "const d = n => n === 0 ? 0 : 1 + d(n - 1)\nconsole.log(d(200000) - 199992)",
    "/dev/stdin": "const [a, b] = require('fs').readFileSync('/dev/stdin', 'utf8').split(' ').map(Number)\nconsole.log(a + b)",  # noqa: E501
    "one byte at a time": "const fs = require('fs'), b = Buffer.alloc(1); let s = ''\nwhile (fs.readSync(0, b, 0, 1, null)) "  # noqa: E501
    "s += b\nconst [x, y] = s.split(' ').map(Number); console.log(x + y)",
    "a worker": "const { Worker, isMainThread, parentPort } = require('worker_threads')\nif (isMainThread) new Worker("
    "__filename).on('message', (m) => console.log(m)); else parentPort.postMessage(8)",
    "much output, then exit": "process.stdout.write('8' + ' '.repeat(300000)); process.exit(0)",
    "modules": "import fs from 'fs'\nconst [a, b] = fs.readFileSync(0, 'utf8').split(' ').map(Number)\nconsole.log(a + b)",  # noqa: E501
}
RUST = {
    "threads": "use std::thread;\nfn main() { let h: Vec<_> = (0..8).map(|_| thread::spawn(|| 1)).collect();\n"
    'println!("{}", h.into_iter().map(|x| x.join().unwrap()).sum::<i32>()); }',
    "a thread with a large stack": "fn f(n: u32) -> u32 { if n == 0 { 8 } else { std::hint::black_box(f(n - 1)) } }\n"
    'fn main() { std::thread::Builder::new().stack_size(256 << 20).spawn(|| println!("{}", f(1000000))).unwrap()'
    ".join().unwrap(); }",
}
GO = {
    "deep recursion": 'package main\nimport "fmt"\nfunc f(n int) int { if n == 0 { return 8 }; return f(n - 1) }\n'
    "func main() { fmt.Println(f(1000000)) }",
}
LANGUAGES = {"cpp": CPP, "c": C, "java": JAVA, "javascript": JAVASCRIPT, "rust": RUST, "go": GO}
PROGRAMS = [
    row
    for language, programs in LANGUAGES.items()
    for row in every(6, [(language, name, source) for name, source in programs.items()])
]


@pytest.mark.promise("honest")
@pytest.mark.parametrize(("language", "name", "source"), PROGRAMS)
def test_a_contest_program_is_accepted(judge: Judge, language: str, name: str, source: str) -> None:
    need(language)
    problem = Problem("sum", "stdio", (Case(SUM, "8"),), limits=LIMITS)
    done = judge.judge(problem, Program(source, language))
    assert done.verdict is Verdict.AC, (done.compile_log, done.cases)


BIG = str((1 << 127) - 1)
# name, arguments, value, language, source
FUNCTIONS = every(6, [
    ("f", "[[1, 2], 1]", "2", "cpp", STD + "class Solution { public: int f(vector<int> a, int k) { return f(a)[k]; } "
     "vector<int> f(vector<int> &a) { return a; } };"),
    ("f", "[3]", "3", "cpp", "int f(int a) { return a; }\nint f(int a, int b) { return a + b; }"),
    ("f", "[[1, 2]]", "2", "cpp", STD + "class Solution { public: int f(vector<int> &a, int k = 1) { return a[k]; } };"),  # noqa: E501
    ("f", "[[1, 2], 0]", "1", "cpp", STD + "class Solution { public: int f(vector<int> &a, int k = 1) const "
     "{ return a[k]; } };"),
    ("f", '["ab"]', '"ab!"', "cpp", "std::string f(const std::string &a, char c = '!') { return a + c; }"),
    ("f", "[2]", "2", "cpp", "// class Solution { };\n/* struct Solution */ const char *s = \"class Solution\";\n"
     'auto r = R"x(class Solution)")x";\nint f(int a) { return a; }'),
    ("count", "[[1, 2]]", "2", "cpp", STD + "int count(vector<int> a) { return a.size(); }"),
    ("f", f"[{BIG}]", f"-{BIG}", "cpp", "__int128 f(__int128 a) { return -a; }"),
    ("f", "[[1, 2]]", f"[{1 << 64}, {2 << 64}]", "cpp", "std::vector<__int128> f(std::vector<__int128> a) "
     "{ for (auto &x : a) x <<= 64; return a; }"),
    ("f", "[8]", "8", "cpp", STD + "int f(int n) { vector<thread> t; atomic<int> s{0}; while (n--) t.emplace_back("
     "[&] { s++; }); for (auto &x : t) x.join(); return s; }"),
    ("f", "[3]", "3", "cpp", "#define int long long\n#define to 1\n#define call 2\n#define a first\nint f(int a) { return a; }"),  # noqa: E501
    ("f", "[3]", "3", "cpp", "struct B { virtual int f(int a) = 0; int g(int a) { return a; } };\n"
     "class Solution : public B { public: int f(int a) { return g(a); } };"),
    ("f", "[3, 4]", "7", "cpp", "int f(int a, int b) { return a + b; }\nint f(std::string a, int b) { return b; }"),
    ("f", "[[1, 2], 1]", "2", "cpp", STD + "struct Solution { int f(string &a, int k) { return k; } "
     "int f(vector<int> &a, int k) { return a[k]; } };"),
    ("f", "[3]", "3", "cpp", "int f(int a) { return a; }\nlong long f(long long) { return 0; }\ndouble f(double) { return 1; }"),  # noqa: E501
    ("f", "[3000000000]", "1", "cpp", "int f(int) { return 0; }\nint f(long long) { return 1; }"),
    ("f", '[["a", "b"]]', '"b"', "cpp", "template <class T> T f(std::vector<T> a) { return a.back(); }"),
    ("f", "[[[1], []]]", "2", "cpp", "auto f(const auto &a) { return a.size(); }"),
    ("f", "[[1, 2.5]]", "3.5", "cpp", "auto f = [](auto a) { return a[0] + a[1]; };"),
    ("f", '[{"a": 1}]', "1", "cpp", "struct Solution { template <class T> int f(T &a) { return a[\"a\"]; } };"),
    ("f", '["ab"]', "2", "cpp", "int f(std::string_view a) { return a.size(); }"),
    ("f", "[[1, 2]]", "3", "cpp", "int f(std::span<int> a) { return a[0] + a[1]; }"),
    ("f", '[[1, "a", 2]]', "[1, 2]", "java", "import java.util.*;\nclass Solution { List<Integer> f(List<Object> a) { "
     "var r = new ArrayList<Integer>(); for (Object o : a) if (o instanceof Integer) r.add((Integer) o); return r; } }"),  # noqa: E501
    ("f", "[[1, 3000000000]]", "3000000001", "java", "class Solution { long f(java.util.List a) { return (Integer) a.get(0) "  # noqa: E501
     "+ (Long) a.get(1); } }"),
    ("f", '[{"a": 1}]', "1", "java", 'class Solution { int f(java.util.Map a) { return (Integer) a.get("a"); } }'),
    ("f", "[[1, 2]]", "2", "java", "class Solution { <T extends Comparable<T>> T f(T[] a) { return a[1]; } }"),
    ("f", "[[2, 1]]", "2", "java", "class Solution { int f(java.util.Iterator<Integer> a) { return a.next(); } }"),
    ("f", "[[1, 2]]", "2", "java", "class Solution { int f(int... a) { return a.length; } }"),
    ("f", '["ab"]', '"ba"', "java", "class Solution { StringBuilder f(StringBuilder a) { return a.reverse(); } }"),
    ("f", "[3]", "3", "java", "package some.place;\nclass Solution { int f(int a) { return a; } }"),
    ("f", "[3]", "3", "javascript", "module.exports = function (a) { return a }"),
    ("f", "[3]", "3", "javascript", "export default a => a"),
    ("f", "[3]", "3", "javascript", "if (require.main === module) process.exit(1)\nexports.f = a => a"),
    ("f", "[3]", "3", "java", "abstract class B { int f(int a) { return g(a); } abstract int g(int a); }\n"
     "class Solution extends B { int g(int a) { return a; } }"),
    ("f", "[3]", "3", "java", "class B { int f(int a) { return a + 1; } }\nclass Solution extends B { @Override "
     "int f(int a) { return super.f(a) - 1; } }"),
    ("f", "[3]", "3", "javascript", "import fs from 'fs'\nexport default class { f (a) { return fs ? a : 0 } }"),
    ("f", "[3]", "3", "javascript", "const x = await Promise.resolve(3)\nexport class Solution { f (a) { return x } }"),
])  # fmt: skip
TYPED = [
    wide("f", "[[1,2],3]", "[1,2,3]", "cpp", "using namespace std;\nclass Solution { public: vector<int> f("
         "vector<int>& v, int k) { v.push_back(k); return v; } };"),
    ("f", '[["a","c\\u00e9"]]', '{"1":["a"],"3":["cé"]}', "cpp", "std::map<int, std::vector<std::string>> f(const "
     "std::vector<std::string>& w) { std::map<int, std::vector<std::string>> m; for (auto& s : w) m[s.size()]"
     ".push_back(s); return m; }"),
    wide("f", "[[9007199254740993,9007199254740993]]", "18014398509481986", "cpp", "#define int long long\n"
         "using namespace std;\nint f(vector<int> a) { return accumulate(a.begin(), a.end(), 0ll); }"),
    wide("f", '[[["a"],["b"]],null,3]', '["b",true]', "cpp", "std::pair<char, bool> f(std::vector<std::vector<char>> g,"
         " std::optional<int> o, double d) { return {g[1][0], d == 3}; }\nint main() { return 3; }"),
    wide("f", "[[1,2],3]", "[4,2]", "java", "class Solution { public int[] f(int[] a, int k) { a[0] += k; return a; } }"),  # noqa: E501
    ("f", '[3,{"q":1},[["a"],["b"]],[[10000000000]],true]', "10000000005.5", "java", "import java.util.*;\n"
     "public class Solution { static double f(double x, Map<String,Integer> m, char[][] g, List<List<Long>> z, boolean"
     ' b) { return x / 2 + m.get("q") + g.length + z.get(0).get(0) + (b ? 1 : 0); } }'),
    ("f", "[3,4]", "7", "javascript", "const f = (a, b) => a + b"),
    ("f", "[[1,2],3]", "[1,2,3]", "javascript", "class Solution { f (a, k) { a.push(k); return a } }"),
    ("f", "[3]", '{"a":1.5,"b":[null,1180591620717411303424]}', "javascript",
     "var f = async x => ({ a: x / 2, b: [null, 1n << 70n] })"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "value", "language", "source"), [*FUNCTIONS, *TYPED])
def test_a_function_is_found_and_called_and_its_value_crosses(
    judge: Judge, name: str, arguments: str, value: str, language: str, source: str
) -> None:
    need(language)
    problem = Problem("f", "function", (Case(arguments, value),), fn_name=name, limits=LIMITS)
    done = judge.judge(problem, Program(source, language))
    assert (done.verdict, done.weak) == (Verdict.AC, False), (done.compile_log, done.cases)


def test_a_global_named_like_a_system_call_does_not_answer_for_an_assert(judge: Judge) -> None:
    source = "int write = 7, pread = 3, fstat = 1, lseek = 2;\nint f(void) { return 2; }"
    test = "#include <assert.h>\nint main(void) { assert(f() == 2); return 0; }"
    for language in ("c", "cpp"):
        need(language)
        problem = Problem("f", "assert", (Case(test),), language=language, limits=LIMITS)
        assert judge.judge(problem, Program(source, language)).verdict is Verdict.AC


@pytest.mark.parametrize(
    ("cases", "types"),
    [
        (["[1, null]"], []),
        (['[[1, "a"]]', "[2, 3]"], ["int, int"]),
        (["[[1], 2.5]", "[[3000000000], 1]"], ["std::vector<long long>, double"]),
        (['[{"a": [[]]}]', '[{"b": [["x"], []]}]'], ["std::map<std::string, std::vector<std::vector<std::string>>>"]),
        (["[" + "9" * 5000 + "]"], []),
    ],
)
def test_an_argument_has_the_type_that_all_its_cases_have_in_common(cases: list[str], types: list[str]) -> None:
    assert argument_types(cases) == ", ".join(f"sandbox_harness::Types<{each}>" for each in types)


def test_arguments_that_no_overload_takes_are_a_runtime_error(judge: Judge) -> None:
    need("cpp")
    source = "int f(int a) { return a; }\nint f(int a, int b) { return a + b; }"
    problem = Problem("f", "function", (Case("[1, 2, 3]", "6"),), fn_name="f", limits=LIMITS)
    done = judge.judge(problem, Program(source, "cpp"))
    assert done.verdict is Verdict.RE
    assert "takes 3 arguments" in done.cases[0].message
