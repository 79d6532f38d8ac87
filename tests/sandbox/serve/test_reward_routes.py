"""The routes of OpenRLHF, slime and open-instruct."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib

import pytest
from serving import Served, served

from sandbox.errors import WorkerDied
from sandbox.languages.table import LANGUAGES
from sandbox.serve.routes.piston.execute import ALIASES
from sandbox.serve.routes.sandbox_fusion import run_code

OURS = {
    "id": "sum",
    "kind": "stdio",
    "cases": [{"input": "3 4\n", "expected": "7"}, {"input": "1 1\n", "expected": "2"}],
}
VERL = {"inputs": ["3 4\n", "1 1\n"], "outputs": ["7\n", "2\n"]}
CALLS = {"inputs": ["[1, 2]\n3", "[]\n0"], "outputs": ["[1, 2, 3]", "[0]"], "fn_name": "f"}
WORDS = {"inputs": ['"a"'], "outputs": ["aa"], "fn_name": "twice"}
ASSERTS = {"assert_case": ["assert f(1) == 2", "assert f(0) == 1"]}
LINES = {"inputs": [["3 4"]], "outputs": [["7", ""]]}
IN_CPP = {**VERL, "language": "cpp"}
SUM = "print(sum(map(int, input().split())))"
SEVEN = "print(7)"
CPP = "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }"


def fenced(code: str, tag: str = "python") -> str:
    return f"Here it is:\n```{tag}\n{code}\n```\n"


LABELS = [
    (OURS, fenced(SUM), 1.0, 1.0),
    (VERL, fenced(SUM), 1.0, 1.0),
    (VERL, fenced(SEVEN), 0.0, 0.5),
    (VERL, SUM, 0.0, 0.0),
    (VERL, f"<think>{fenced(SUM)}</think>I do not know.", 0.0, 0.0),
    (VERL, fenced(SEVEN) + fenced(SUM).rstrip("\n") + "<|im_end|>\n<|endoftext|>", 1.0, 1.0),
    (VERL, fenced(SUM).rstrip("\n") + "</s>", 1.0, 1.0),
    (VERL, fenced(SUM).rstrip("\n") + " <|eot_id|> \n" + "<pad>" * 5000, 1.0, 1.0),
    (LINES, fenced(SUM), 1.0, 1.0),
    (CALLS, fenced("class Solution:\n    def f(self, a, b): return a + [b]"), 1.0, 1.0),
    (CALLS, fenced("def f(a, b): return a"), 0.0, 0.0),
    (CALLS, fenced("def f(a: List[int], b) -> List[int]: return a + [b]"), 1.0, 1.0),
    (WORDS, fenced("def twice(s): return s + s"), 1.0, 1.0),
    (ASSERTS, fenced("def f(x): return 1 + bool(x)"), 1.0, 1.0),
    (ASSERTS, fenced("def f(x): return 2"), 0.0, 0.5),
]


@served()
async def test_an_answer_is_rewarded_by_the_problem_in_its_label(s: Served) -> None:
    for label, answer, reward, share in LABELS:
        for text in (json.dumps(label), label):
            slime = {"prompt": "Add.", "response": answer, "label": text}
            assert (await s.ask("/remote_rm", slime)).json == reward, (label, answer)
            assert (await s.ask("/remote_rm?reward=share", slime)).json == share, (label, answer)
        query = f"<s>Add. {fenced(SUM)}{answer}"  # a program in the prompt is no answer
        rlhf = {"query": [query], "prompts": [f"Add. {fenced(SUM)}"], "labels": [json.dumps(label)]}
        assert (await s.ask("/get_reward", rlhf)).json == {"rewards": reward, "scores": reward, "extra_logs": {}}


@pytest.mark.compilers
@served()
async def test_a_label_names_the_language_of_the_program(s: Served) -> None:
    body = {"prompt": "", "response": fenced(SUM) + fenced(CPP, "cpp"), "label": IN_CPP}
    assert (await s.ask("/remote_rm", body)).json == 1.0


@served()
async def test_openrlhf_gets_a_list_for_any_count_but_one(s: Served) -> None:
    def body(*answers: str) -> dict:
        return {"query": list(answers), "prompts": [""] * len(answers), "labels": [json.dumps(VERL)] * len(answers)}

    assert (await s.ask("/get_reward", body())).json == {"rewards": [], "scores": [], "extra_logs": {}}
    found = (await s.ask("/get_reward", body(fenced(SUM), fenced(SEVEN), "no"))).json
    assert found["rewards"] == found["scores"] == [1.0, 0.0, 0.0]


UNFIT = [
    (None, "field 'label' is missing"),
    ("7", "it has no tests"),
    ("{", "it has no tests"),
    ({"inputs": ["1"], "outputs": ["1", "2"]}, "lists of the same length"),
    ({"inputs": ["?"], "outputs": ["1"], "fn_name": "f"}, "a JSON value per line"),
    ({"inputs": ["1"], "outputs": [""]}, "every expected output is blank"),
    ({"inputs": ["1"], "outputs": ["1"], "language": "cobol"}, "cobol"),
    ({"inputs": ["1"], "outputs": ["1"], "limits": {"cpu": 1}}, "unknown key 'cpu'"),
    ({"inputs": ["1"], "outputs": ["1"], "compare": 3}, "compare=3"),
    ({"id": "x", "kind": "stdio", "cases": []}, "cases=()"),
]


@served()
async def test_a_label_that_no_program_can_be_judged_by_is_refused_with_its_place(s: Served) -> None:
    for label, says in UNFIT:
        answered = await s.ask("/remote_rm", {"prompt": "", "response": fenced(SUM), "label": label})
        assert (answered.status, says in answered.error) == (422, True), answered.body


@served()
async def test_a_reward_of_another_name_and_lists_of_other_lengths_are_refused(s: Served) -> None:
    answered = await s.ask("/remote_rm?reward=best", {"prompt": "", "response": "", "label": VERL})
    assert (answered.status, "use one of all, share, score" in answered.error) == (422, True)
    answered = await s.ask("/get_reward", {"query": ["a"], "prompts": [], "labels": ["{}"]})
    assert (answered.status, "same length" in answered.error) == (422, True)


@served()
async def test_a_query_without_its_prompt_is_refused_since_code_of_the_prompt_might_be_paid(s: Served) -> None:
    body = {"query": [fenced(SUM)], "prompts": ["Add."], "labels": [json.dumps(VERL)]}
    answered = await s.ask("/get_reward", body)
    assert (answered.status, "query[0]" in answered.error) == (422, True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/remote_rm", {"prompt": "", "response": fenced(SUM), "label": VERL}),
        ("/get_reward", {"query": [fenced(SUM)], "prompts": [""], "labels": [json.dumps(VERL)]}),
        ("/test_program_stdio", {"program": SUM, "tests": [{"input": "1 2", "output": "3"}]}),
    ],
)
@served()
async def test_our_fault_is_no_reward(s: Served, monkeypatch, path, body) -> None:
    async def dies(*_: object, **__: object) -> None:
        raise WorkerDied("a worker died")

    with monkeypatch.context() as patch:
        patch.setattr(s.service.pool, "judge", dies)
        assert (await s.ask(path, body)).status == 504


def packed(tests: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(tests))).decode()


PAIRS = [{"input": "1\n", "output": "2\n"}, {"input": "100\n", "output": "101\n"}, {"input": "5\n", "output": "7\n"}]
MORE = "import sys\nfor line in sys.stdin: print(int(line) + 1)"
TESTS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add(0, 0) == 1"]


@pytest.mark.parametrize("pack", [list, json.dumps, packed])
@served()
async def test_open_instruct_gets_a_result_and_a_time_for_each_test(s: Served, pack) -> None:
    jobs = [
        ("/test_program", "def add(a, b): return a + b", TESTS),
        ("/test_program_stdio", MORE, PAIRS),
    ]
    for path, program, tests in jobs:
        found = (await s.ask(path, {"program": program, "tests": pack(tests), "max_execution_time": 2.0})).json
        assert found["results"] == [1, 1, 0]
        assert [time > 0 for time in found["runtimes"]] == [True, True, False]
        assert found["runtimes"][2] == -1.0
        assert (await s.ask(path, {"program": program, "tests": []})).json == {"results": [], "runtimes": []}


class Exploit:
    def __reduce__(self) -> object:
        return os.system, ("touch /tmp/owned",)


@served()
async def test_packed_tests_that_are_no_plain_list_are_refused(s: Served) -> None:
    laughs: list = ["x"]
    for _ in range(60):
        laughs = [laughs, laughs]
    bombs = [packed(laughs), packed([{"input": laughs}])]
    far = base64.b64encode(zlib.compress(b"\x80\x02]r\xff\xff\xff\x3f.")).decode()  # 16 GiB of memo, for 9 bytes
    for tests in [packed(Exploit()), far, *bombs, packed([1])[:-8], "x", base64.b64encode(b"x").decode(), 3]:
        answered = await s.ask("/test_program", {"program": "", "tests": tests})
        assert (answered.status, "tests" in answered.error) == (422, True), answered.body


def test_every_language_that_we_have_has_its_names_in_the_others_formats() -> None:
    assert list(ALIASES) == list(LANGUAGES)
    assert {run_code.fusion_language(name) for name in run_code.NAMES} == set(LANGUAGES)


@served()
async def test_code_of_a_prompt_that_is_not_found_is_never_paid(s: Served) -> None:
    prompt = f"Example:\n{fenced(SUM)}Now you."
    for query, status in ((f"<s>{prompt.replace('Now', ' Now')} No.", 422), (f"<s>{prompt} No.", 200)):
        body = {"query": [query], "prompts": [prompt], "labels": [VERL]}
        answered = await s.ask("/get_reward", body)
        assert answered.status == status, answered.body
        assert status == 422 or answered.json["rewards"] == 0.0
