"""Whatever the loop is given has the methods of its protocol, with the same parameters."""

from __future__ import annotations

import inspect
import subprocess
import sys

import fake_parts
import pytest

from overlap import core
from overlap.generate.client import EngineClient
from overlap.generate.engines import Engines
from overlap.learner.learner import ProcessLearner
from overlap.run import kept_rollouts as saved
from overlap.verify.verifier import SandboxVerifier


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [
        (core.Generator, EngineClient),
        (core.Generator, Engines),
        (core.Generator, saved.SavedGenerator),
        (core.Generator, fake_parts.FakeGenerator),
        (core.Verifier, SandboxVerifier),
        (core.Verifier, saved.SavedVerifier),
        (core.Verifier, fake_parts.FakeVerifier),
        (core.Learner, ProcessLearner),
        (core.Learner, fake_parts.FakeLearner),
    ],
)
def test_every_method_of_a_protocol_is_there_with_the_same_parameters(protocol: type, kind: type) -> None:
    wanted = {n: m for n, m in inspect.getmembers(protocol, inspect.isfunction) if not n.startswith("_")}
    assert {"close", "pids"} <= wanted.keys()
    for name, method in wanted.items():
        made = getattr(kind, name)
        assert list(inspect.signature(made).parameters) == list(inspect.signature(method).parameters), name
        assert inspect.iscoroutinefunction(made) == inspect.iscoroutinefunction(method), name


@pytest.mark.promise("imports")
def test_the_learner_as_the_driver_has_it_imports_no_torch() -> None:
    """Its ranks compute, and they are other processes."""
    code = (
        "import sys, overlap.learner\nprint(sorted({'torch', 'transformers', 'deepspeed', 'peft'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
