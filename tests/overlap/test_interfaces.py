"""The doors: what the loop is given has all that the protocol promises, and the same of it."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from overlap import core, fakes
from overlap.generate import EngineClient, Engines
from overlap.learner import ProcessLearner
from overlap.replay import kept_rollouts as saved
from overlap.verify import SandboxVerifier


@pytest.mark.parametrize(
    ("protocol", "door"),
    [
        (core.Generator, EngineClient),
        (core.Generator, Engines),
        (core.Generator, saved.SavedGenerator),
        (core.Generator, fakes.FakeGenerator),
        (core.Verifier, SandboxVerifier),
        (core.Verifier, saved.SavedVerifier),
        (core.Verifier, fakes.FakeVerifier),
        (core.Learner, ProcessLearner),
        (core.Learner, fakes.FakeLearner),
    ],
)
def test_a_door_has_every_method_of_its_protocol_with_the_same_parameters(protocol: type, door: type) -> None:
    wanted = {n: m for n, m in inspect.getmembers(protocol, inspect.isfunction) if not n.startswith("_")}
    assert {"close", "pids"} <= wanted.keys()
    for name, method in wanted.items():
        made = getattr(door, name)
        assert list(inspect.signature(made).parameters) == list(inspect.signature(method).parameters), name
        assert inspect.iscoroutinefunction(made) == inspect.iscoroutinefunction(method), name


def test_the_learners_door_imports_no_torch() -> None:
    """It is imported by the driver, which has no use for it: its ranks compute."""
    code = (
        "import sys, overlap.learner\nprint(sorted({'torch', 'transformers', 'deepspeed', 'peft'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
