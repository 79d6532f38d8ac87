"""The zoo through a server: no attack is accepted, every honest twin is, and the server goes on."""

from __future__ import annotations

import asyncio

import pytest
from serving import Served, served
from wide import every

from sandbox import Client, Program, Verdict
from sandbox.serve.bounds import Bounds
from sandbox.zoo import catalogue, exhibits

GROUPS = 8
PARTS = [
    [entry for number, entry in enumerate(catalogue.entries()) if number % GROUPS == part] for part in range(GROUPS)
]


@pytest.mark.promise("attacks")
@pytest.mark.parametrize("entries", every(GROUPS, PARTS), ids=range(GROUPS))
@served(2, bounds=Bounds(sessions=1))
async def test_no_attack_is_accepted_over_http(s: Served, entries: list[exhibits.Entry]) -> None:
    async with Client(s.url) as client:
        jobs = [(entry, attack) for entry in entries for attack in entry.attacks]
        programs = [Program(attack.source, attack.language) for _, attack in jobs]
        done = await asyncio.gather(
            *(client.judge(entry.problem, program) for (entry, _), program in zip(jobs, programs, strict=True))
        )
        for (entry, attack), judgement in zip(jobs, done, strict=True):
            assert judgement.verdict.value in attack.verdicts(judgement.tier), (entry.id, judgement)
        honest = [(entry.problem, program) for entry in entries for program in entry.honest]
        twins = await asyncio.gather(*(client.judge(*job) for job in honest))
        assert {judgement.verdict for judgement in twins} == {Verdict.AC}
    assert (await s.ask("/health")).json == {"status": "ok", "in_hand": 0}
