"""Real, unmodified clients against the gateway, as agent programs: each runs to its end, and the tree is exact."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from clients import AGENTS, WIDE, Dropping, Recording, Speaker, calls, directly, installed, played, tree

from overlap.server import harness as harness_

STEPS = ["I look." + calls(("twice", {"number": 2}), ("twice", {"number": 3})),
         calls(("twice", {"number": 21})), "It is 42."]  # fmt: skip
HEARD = [
    ["I look.", [["twice", {"number": 2}], ["twice", {"number": 3}]]],
    ["", [["twice", {"number": 21}]]],
    ["It is 42.", []],
]


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    return Recording(monkeypatch)


OPENAI = f"{sys.executable} {AGENTS / 'openai_agent.py'}"
OPENAI_HOWS = ("plain", "async", "stream", "chunks")
HOWS = [*(("openai", how) for how in OPENAI_HOWS), ("ai", "plain"), ("ai", "stream")]


@pytest.mark.promise("gateway")
@pytest.mark.parametrize(("client", "how"), HOWS)
def test_a_client_gets_the_same_text_and_calls_however_it_asks_and_opens_no_branch(tmp_path, recording, client, how):
    if client == "openai":
        pytest.importorskip("openai")
    command = OPENAI if client == "openai" else f"node {AGENTS / 'ai_agent.mjs'} {installed('ai')}"
    found = played(f"{command} {how}", tmp_path, recording, Speaker(*STEPS))
    called = "tool_calls" if client == "openai" else "tool-calls"
    assert json.loads(found.answer) == [[*step, end] for step, end in zip(HEARD, [called, called, "stop"], strict=True)]
    assert len(found.chat.branches()) == 1
    assert tree(found.chat) == tree(directly(found.bodies, Speaker(*STEPS)))


def test_what_openai_asks_again_when_its_connection_was_cut_is_sampled_once(tmp_path, recording) -> None:
    pytest.importorskip("openai")
    voice = Speaker(*STEPS)
    found = played(f"{OPENAI} plain", tmp_path, recording, voice, door=Dropping)
    again = [headers["x-stainless-retry-count"] for headers in found.headers]
    assert again == ["0", "1", "0", "0"]
    assert [step[:2] for step in json.loads(found.answer)] == HEARD
    assert (len(voice.sampled), found.chat.replayed) == (3, 1)
    assert tree(found.chat) == tree(directly(found.bodies[1:], Speaker(*STEPS)))


def bash(command: str) -> str:
    return calls(("bash", {"command": command}))


def mini() -> str:
    """It may keep nothing outside its directory, and ask nobody else."""
    own = "LITELLM_LOCAL_MODEL_COST_MAP=True MSWEA_GLOBAL_CONFIG_DIR=. MSWEA_CONFIGURED=true"
    how = "-y --exit-immediately -m openai/policy -t solve -o run.json"
    return f"{own} MSWEA_COST_TRACKING=ignore_errors {installed('mini-swe-agent')}/bin/mini {how}"


def test_an_answer_that_mini_swe_agent_forgets_is_learned_from_as_a_branch(tmp_path, recording) -> None:
    words = (
        "I look." + bash("ls"),
        "I forgot the tool.",
        bash("echo 7 > answer.txt"),
        bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    )
    found = played(mini(), tmp_path, recording, Speaker(*words))
    assert found.answer == "7\n"
    assert [turn.parent for turn in found.chat.episode.turns] == [None, 0, 0, 2]
    assert [branch.turns for branch in found.chat.branches()] == [3, 2]
    assert sum(branch.trained for branch in found.chat.branches()) == found.chat.sampled
    assert tree(found.chat) == tree(directly(found.bodies, Speaker(*words)))


def test_mini_swe_agent_asks_once_when_its_budget_is_used_up_and_ends(tmp_path, recording, monkeypatch) -> None:
    monkeypatch.setattr(harness_, "GRACE_S", 60.0)  # of a machine that does much else; alone it takes less than two
    budget = replace(WIDE, turns=2)
    found = played(mini(), tmp_path, recording, Speaker("I look." + bash("ls")), budget)
    assert len(found.bodies) == 3
    assert found.lingered_s is not None
    assert found.lingered_s < harness_.GRACE_S  # it was not ended
    assert len(found.chat.branches()) == 1


@pytest.mark.parametrize(
    ("how", "words", "forks"),
    [
        ("calls", ("hm" + calls(("twice", {"number": 4})), calls(("final_answer", {"answer": "8"}))), 1),
        ("code", ("<code>\nnumber = twice(4)\n</code>", "<code>\nfinal_answer(number)\n</code>"), 1),
    ],
)  # fmt: skip
def test_smolagents_runs_to_its_end_and_a_history_that_it_writes_anew_is_a_branch(
    tmp_path, recording, how: str, words: tuple[str, ...], forks: int
) -> None:
    python = installed("smolagents") / "bin" / "python"
    found = played(f"{python} {AGENTS / 'smol_agent.py'} {how}", tmp_path, recording, Speaker(*words))
    assert found.answer == "8"
    assert ("required" in [body.get("tool_choice") for body in found.bodies]) == (how == "calls")
    assert len(found.chat.branches()) == 1 + forks
    assert sum(branch.trained for branch in found.chat.branches()) == found.chat.sampled
    assert tree(found.chat) == tree(directly(found.bodies, Speaker(*words)))


def marked(**fields: object) -> str:
    """What dspy reads of an answer."""
    return "\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in {**fields, "completed": ""}.items())


DSPY = (
    marked(next_thought="twice", next_tool_name="twice", next_tool_args='{"number": 4}'),
    marked(next_thought="done", next_tool_name="finish", next_tool_args="{}"),
    marked(reasoning="it was doubled", answer="It is 8."),
)
FRAMEWORKS: dict[str, tuple[str, tuple[str, ...], int]] = {
    # what framework_agent.py calls it: the environment that it is installed in, what the policy says, and branches
    **{
        name: (folder, ("I look." + calls(("twice", {"number": 4})), "It is 8."), branches)
        for name, folder, branches in (
            ("langgraph", "langgraph", 1),
            ("pydantic_ai", "pydantic-ai", 1),
            ("openai_agents", "openai-agents", 1),
            ("llama_index", "llama-index", 1),
            ("verifiers", "verifiers", 1),
            ("autogen", "autogen", 2),  # it reflects on what the tool returned without naming the tool
            ("crewai", "crewai", 2),  # it writes the history anew
            ("haystack", "haystack", 1),
            ("google_adk", "google-adk", 1),
            ("inspect_ai", "inspect-ai", 1),
        )
    },
    "dspy": ("dspy", DSPY, 3),  # each of its prompts tells all that happened before
    "instructor": ("instructor", (calls(("Answer", {"text": "It is 8."})),), 1),
}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_agent_framework_runs_to_its_end_and_its_tree_is_exact(tmp_path, recording, name: str) -> None:
    folder, words, branches = FRAMEWORKS[name]
    python = installed(folder) / "bin" / "python"
    found = played(f"{python} {AGENTS / 'framework_agent.py'} {name}", tmp_path, recording, Speaker(*words))
    assert found.answer == "It is 8."
    assert len(found.chat.branches()) == branches
    assert not found.chat.refused
    assert found.chat.ignored == ({"tool_choice": 1} if name == "instructor" else {})  # it names the tool to call
    assert sum(branch.trained for branch in found.chat.branches()) == found.chat.sampled
    assert tree(found.chat) == tree(directly(found.bodies, Speaker(*words)))


def test_agents_of_node_run_to_their_end(tmp_path, recording) -> None:
    words = FRAMEWORKS["openai_agents"][1]
    command = f"node {AGENTS / 'agents_js.mjs'} {installed('openai-agents-js')}"
    found = played(command, tmp_path, recording, Speaker(*words))
    assert (found.answer, len(found.chat.branches())) == ("It is 8.", 1)
