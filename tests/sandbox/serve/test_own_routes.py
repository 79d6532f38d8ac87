"""What our own routes answer: judgements as the pool gives them, and errors that say who is at fault."""

from __future__ import annotations

import pytest
from pooling import RIGHT, SUM, WRONG
from serving import Served, served


@served()
async def test_a_program_is_judged_as_the_pool_judges_it(s: Served) -> None:
    pytest.importorskip("starlette")
    for program in (RIGHT, WRONG):
        got = await s.ask("/judge", {"problem": SUM.to_json(), "program": program.source})
        here = await s.service.pool.judge(SUM, program)
        assert got.status == 200, got.body
        assert got.json["verdict"] == here.verdict
        assert got.json.keys() == here.to_json().keys()
