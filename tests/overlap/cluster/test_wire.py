"""What is packed on one machine is the same on another one."""

from __future__ import annotations

import dataclasses

from overlap.cluster.nodes import NodeJob, NodeParcel
from overlap.cluster.wire import pack_parcel, placed, unpack_parcel
from sandbox.core import Case, CaseResult, Judgement, Problem, Program, Verdict


def test_a_parcel_comes_as_it_was_sent():
    alone = Program("print(1)", "python")
    several = Program(language="java", files=(("A.java", "class A {}"), ("B.java", "class B {}")), entry="A")
    parcel = NodeParcel(
        jobs=[NodeJob(7, 3, "digest", alone), NodeJob(8, 0, "other", several)],
        problems={"digest": Problem("p", "stdio", (Case("1", "1"),))},
        forgotten=["old"],
        withdrawn=[5, 6],
        spare=3,
        wait_s=1.5,
    )
    there = unpack_parcel(pack_parcel(parcel))
    assert there == parcel
    assert [type(job) for job in there.jobs] == [NodeJob, NodeJob]
    assert all(isinstance(job.program, Program) for job in there.jobs)


def test_a_judgement_knows_its_node_and_its_wait_and_is_otherwise_the_same():
    case = CaseResult(0, Verdict.WA, 0.1, 0.2, 3)
    made = Judgement("p", Verdict.WA, (case,), 0, 2, True, "A", "cpp", "gcc", "a warning", 0.0, 0.3, 0.5)
    wanted = dataclasses.replace(made, queue_s=1.5, node="node1")
    assert placed(made, 1.5, "node1") == wanted
