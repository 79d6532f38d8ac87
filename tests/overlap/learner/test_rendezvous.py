"""Ranks on several machines find each other by rank 0's address, or end within a time and say who is missing where."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overlap.config.fields import Config
from overlap.core.errors import LearnerDiedError, LearnerError
from overlap.learner import rank
from overlap.learner.processes import Here, RankLife, RankProcesses, RankSpec, environment_of
from overlap.learner.rank import Rendezvous, interface_of, interfaces
from overlap.placement.seats import Placement, RankSeat
from overlap.process.calls import PackedCall, decode_message

HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


def specs(*nodes: str, port: int = 0, address: str = HERE) -> list[RankSpec]:
    seats = tuple(RankSeat(rank, 1, node=node, address=address) for rank, node in enumerate(nodes))
    nowhere = Path("/nowhere")
    return [
        RankSpec(rank, nowhere, nowhere, nowhere, Config(), 1, Placement(ranks=seats), port)
        for rank in range(len(nodes))
    ]


def test_the_interface_is_the_one_that_has_the_address_of_the_node() -> None:
    known = {"lo": ["127.0.0.1", "::1"], "eth0": ["192.168.0.7"], "ib0": ["10.0.0.4", "fd00::4"]}
    found = [interface_of(RankSeat(0, 1, address=address), known) for address in ("10.0.0.4", "fd00::4", "127.0.0.1")]
    assert found == ["ib0", "ib0", "lo"]
    told = "learner rank 1 on node n1: no interface there has the address 10.9.9.9, but lo 127.0.0.1 ::1, eth0 192"
    with pytest.raises(LearnerError, match=told):
        interface_of(RankSeat(1, 1, node="n1", address="10.9.9.9"), known)
    assert interface_of(RankSeat(0, 1, address=HERE), interfaces()) == "lo"


def test_both_libraries_take_that_interface_unless_the_owner_of_the_node_named_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=ib1")
    assert Rendezvous().open(RankSeat(1, 1, address=HERE)) == 0
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("lo", "=ib1")


def test_all_who_attend_share_what_the_process_group_begins_with() -> None:
    first, second = Rendezvous(), Rendezvous()
    mine, other = specs("n1", "n2", port=first.open(RankSeat(0, 1, address=HERE)))
    said: dict[int, Any] = {}

    def begin(rank: int) -> Any:
        def work(store: Any, soon: timedelta) -> None:
            store.set(f"from {rank}", str(rank))
            said[rank] = store.get(f"from {1 - rank}")

        return work

    with ThreadPoolExecutor() as threads:
        ends = [threads.submit(first.attend, mine, begin(0)), threads.submit(second.attend, other, begin(1))]
        assert [end.result(30) for end in ends] == [None, None]
    assert said == {0: b"1", 1: b"0"}


def test_a_rank_that_does_not_come_is_named_with_its_node_and_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "MEET_S", 0.2)
    waits = Rendezvous()
    mine, _ = specs("n1", "n2", port=waits.open(RankSeat(0, 1, address=HERE)))
    said = (
        rf"did not connect within 0\.2 s: learner rank 1 on node n2 \({HERE}\) did not connect to {HERE}:{mine.port} \("
    )
    with pytest.raises(LearnerDiedError, match=said):
        waits.attend(mine, lambda store, soon: pytest.fail("it began alone"))


def test_a_rank_that_cannot_reach_the_first_says_so_and_one_that_cannot_speak_with_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank, "MEET_S", 0.2)
    host = Rendezvous()
    port = host.open(RankSeat(0, 1, address=HERE))
    alone = specs("n1", port=port)[0]

    def firewall(store: Any, soon: timedelta) -> None:
        raise RuntimeError("[enforce fail]\n connect timeout")

    with pytest.raises(LearnerDiedError, match=r"rank 0 on node n1 .* cannot connect to .* \(\[enforce fail\] connect"):
        host.attend(alone, firewall)
    unreachable = specs("n1", "", port=1)[1]
    with pytest.raises(LearnerDiedError, match=rf"rank 1 on the machine of the run .* cannot reach rank 0 at {HERE}:1"):
        Rendezvous().attend(unreachable, firewall)


def test_what_depends_on_a_ranks_own_machine_is_not_told_by_the_driver() -> None:
    environments = [environment_of(spec) for spec in specs("", "n1", "n1")]
    assert [own["LOCAL_RANK"] for own in environments] == ["0", "0", "1"]
    assert [own["LOCAL_SIZE"] for own in environments] == ["1", "2", "2"]
    assert [own["RANK"] for own in environments] == ["0", "1", "2"]
    assert not any({"GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"} & own.keys() for own in environments)


class Site(Here):
    """Machines whose ranks answer at once."""

    def __init__(self) -> None:
        super().__init__(2)
        self.asked: list[tuple[int, str, Any]] = []
        self.closed = False

    async def start(self, life: Any, title: str, module: str, environment: Any, seat: RankSeat) -> Any:
        async def ask(message: PackedCall) -> Any:
            call = decode_message(message.data[8:])
            self.asked.append((seat.rank, call.name, call.args[0] if call.args else None))
            return 4711 if (call.name, seat.rank) == ("meet", 0) else None

        return SimpleNamespace(ask=ask, close=lambda: asyncio.sleep(0))

    async def close(self) -> None:
        self.closed = True


def test_ranks_over_nodes_are_told_the_port_of_the_first_before_they_start(tmp_path: Path) -> None:
    async def main() -> Site:
        site = Site()
        ranks = RankProcesses(specs("", "n1")[0], RankLife(tmp_path, None), site)
        await ranks.start(30.0)
        await ranks.close()
        return site

    site = asyncio.run(main())
    assert [(rank, name) for rank, name, _ in site.asked] == [
        (rank, name) for name in ("meet", "start", "close") for rank in (0, 1)
    ]
    assert [(told.rank, told.port) for _, name, told in site.asked if name == "start"] == [(0, 4711), (1, 4711)]
    assert site.closed
