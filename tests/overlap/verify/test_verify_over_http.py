"""The verifier of a run over a server: `sandbox.Client` in the place of the pool."""

from __future__ import annotations

import asyncio

import pytest
from serving import Served, served
from verifying import Judged, config, trajectory

from overlap.verify.verifier import SandboxVerifier
from sandbox import Client

RIGHT = "print(sum(map(int, input().split())))"


@pytest.mark.promise("serve")
@served(2)
async def test_a_run_may_judge_on_another_machine(s: Served) -> None:
    verifier = SandboxVerifier(config(), Judged(), pool=lambda: Client(s.url), judge_once=False)
    answers = [RIGHT, "print(3)", RIGHT + "#"]
    scored = await asyncio.gather(*(verifier.score(trajectory(text, n)) for n, text in enumerate(answers)))
    await verifier.close()
    assert [each.reward for each in scored] == [1.0, 0.0, 1.0]
    asked = {"route": "/judge", "status": "200"}
    assert s.service.metrics.registry.get_sample_value("sandbox_requests_total", asked) >= 3
