"""Seats for engines and ranks: a table of devices x shared or split x tensor parallelism x ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hardware import config

from overlap.config.fields import Config
from overlap.core.errors import ConfigError
from overlap.placement.devices import Devices
from overlap.placement.seats import Placement, check_environment, check_shared_memory, place, place_here

TABLE = [
    # devices, tensor_parallel, replicas, ranks → backend, engines' devices, ranks' devices
    (1, 1, 1, 1, "ipc", [[0]], [0]),
    (2, 1, 1, 1, "nccl", [[0]], [1]),
    (2, 1, 1, 2, "ipc", [[0]], [0, 1]),
    (2, 1, 0, 2, "ipc", [[0], [1]], [0, 1]),
    (4, 2, 1, 2, "nccl", [[0, 1]], [2, 3]),
    (4, 1, 3, 2, "ipc", None, None),
    (8, 2, 0, 8, "ipc", [[0, 1], [2, 3], [4, 5], [6, 7]], list(range(8))),
    (8, 2, 2, 4, "nccl", [[0, 1], [2, 3]], [4, 5, 6, 7]),
    (8, 1, 0, 4, "nccl", [[0], [1], [2], [3]], [4, 5, 6, 7]),
    (8, 8, 0, 8, "ipc", [list(range(8))], list(range(8))),
    (8, 3, 0, 8, "ipc", [[0, 1, 2], [3, 4, 5]], list(range(8))),  # two GPUs are too few for a third engine
    (8, 2, 0, 1, "nccl", [[0, 1], [2, 3], [4, 5]], [6]),
]


def refused(cfg: Config, devices: Devices, **parts: bool) -> str:
    with pytest.raises(ConfigError) as caught:
        place(cfg, devices, **parts)
    return str(caught.value)


def placed_or_refused(cfg: Config, devices: Devices) -> Placement | ConfigError:
    try:
        return place(cfg, devices)
    except ConfigError as error:
        return error


@pytest.mark.promise("seats")
@pytest.mark.parametrize(("count", "parallel", "replicas", "ranks", "backend", "engines", "learner"), TABLE)
def test_every_process_has_its_gpus(count, parallel, replicas, ranks, backend, engines, learner) -> None:
    cfg, devices = config(parallel, replicas, ranks), Devices.gpus(count)
    if engines is None or learner is None:
        assert "learn.ranks=2: weights are handed over on each GPU (ipc)" in refused(cfg, devices)
        return
    placed = place(cfg, devices)
    assert placed.backend == backend
    assert [list(seat.devices) for seat in placed.engines] == engines
    assert [list(seat.devices) for seat in placed.ranks] == [[device] for device in learner]
    assert placed.sleeps == any(map(placed.feeds, placed.ranks)) == (backend == "ipc")
    check_laws(placed, count, parallel)


def check_laws(placed: Placement, count: int, parallel: int) -> None:
    """What holds of every placement on GPUs."""
    for seats in (placed.engines, placed.ranks):
        taken = [device for seat in seats for device in seat.devices]
        assert len(set(taken)) == len(taken)
        assert set(taken) <= set(range(count))
        assert [seat.visible for seat in seats] == [",".join(map(str, seat.devices)) for seat in seats]
        assert all(seat.environment["CUDA_VISIBLE_DEVICES"] == seat.visible for seat in seats)
    assert [seat.seed for seat in placed.engines] == [7 + e for e in range(len(placed.engines))]
    assert {seat.seed for seat in placed.ranks} <= {7}
    assert all(seat.environment["LOCAL_RANK"] == "0" for seat in placed.ranks)
    group = [seat.first_rank + worker for seat in placed.engines for worker in range(parallel)]
    assert group == list(range(1, 1 + placed.engine_devices))
    if placed.sleeps:
        ranks = {device for seat in placed.ranks for device in seat.devices}
        assert all(set(seat.devices) <= ranks for seat in placed.engines)


@pytest.mark.promise("seats")
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_whatever_is_asked_for_is_lawful_or_refused_by_a_field(count: int) -> None:
    placed = 0
    for parallel in (1, 2, 3, 4, 8):
        for replicas in (0, 1, 2, 4, 8):
            for ranks in (1, 2, 4, 8):
                cfg = config(parallel, replicas, ranks)
                made = placed_or_refused(cfg, Devices.gpus(count))
                if isinstance(made, ConfigError):
                    section, _, name = made.field.partition(".")
                    assert hasattr(getattr(cfg, section), name)
                    assert "use " in made.way_out
                    continue
                placed += 1
                check_laws(made, count, parallel)
                assert len(made.ranks) == ranks
                assert replicas in (0, len(made.engines))
    assert placed


@pytest.mark.parametrize(
    ("count", "cfg", "message"),
    [
        (4, config(1, 1, 8), "learn.ranks=8: each rank needs a GPU, and here are 4: use 4 or less"),
        (4, config(2, 3, 4), "rollout.replicas=3: 3 engine(s) of 2 GPU(s) need 6, and 4 of 4 can be theirs"),
        (4, config(8, 1, 4), "rollout.tensor_parallel=8: 1 engine(s) of 8 GPU(s) need 8, and 4 of 4 can be theirs"),
        (4, config(2, 2, 2), "learn.ranks=2: weights are handed over on each GPU (ipc), and engines sit on 4"),
        (
            1,
            config(max_staleness=1, in_flight="keep"),
            "rollout.in_flight='keep': the engine sleeps while the learner has its GPUs",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_way_out(count: int, cfg: Config, message: str) -> None:
    assert message in refused(cfg, Devices.gpus(count))


def test_the_names_that_the_user_made_visible_are_handed_on() -> None:
    placed = place(config(1, 0, 2), Devices(("GPU-a", "3", "GPU-b", "1")))
    assert [seat.visible for seat in placed.engines] == ["GPU-a", "3"]
    assert [seat.visible for seat in placed.ranks] == ["GPU-b", "1"]


def test_engines_alone_have_all_gpus_and_a_learner_alone_its_own() -> None:
    alone = place(config(2, 0, 8, max_staleness=0), Devices.gpus(4), learner=False)
    assert [seat.devices for seat in alone.engines] == [(0, 1), (2, 3)]
    assert (alone.backend, alone.ranks) == ("shm", ())
    kept = config(max_staleness=2, in_flight="keep")
    assert len(place(kept, Devices.gpus(1), learner=False).engines) == 1  # nobody learns, so nobody sleeps
    assert place(config(max_staleness=2), Devices.gpus(1)).sleeps
    learner = place(config(4, 1, 2), Devices.gpus(2), engine=False)
    assert [seat.devices for seat in learner.ranks] == [(0,), (1,)]
    assert (learner.backend, learner.engines) == ("shm", ())
    assert "learn.ranks=2: each rank needs a GPU, and here are 1" in refused(
        config(1, 1, 2), Devices.gpus(1), engine=False
    )


@pytest.mark.parametrize(
    ("cores", "parallel", "replicas", "staleness", "bound"),
    [
        # several engines have cores of their own
        (2, 1, 2, 1, ["0", "1"]),
        (3, 1, 2, 1, ["0", "1"]),
        (8, 1, 2, 1, ["0,1,2", "3,4,5,6"]),
        (4, 2, 2, 1, ["0|1", "2|3"]),
        # one has all of few cores while no learner works beside it
        (4, 1, 1, 0, ["0,1,2,3"]),
        (4, 2, 0, 0, ["0,1|2,3"]),
        (1, 1, 1, 0, ["0"]),
        # any other is left to vLLM
        (2, 1, 0, 1, [""]),
        (5, 1, 1, 0, [""]),
        (2, 3, 1, 0, [""]),
    ],
)
def test_on_a_cpu_engines_are_bound_to_cores_of_their_own_or_left_to_vllm(
    cores: int, parallel: int, replicas: int, staleness: int, bound: list[str]
) -> None:
    placed = place(config(parallel, replicas, 2, max_staleness=staleness), Devices(cores=tuple(range(cores))))
    assert (placed.kind, placed.backend, placed.sleeps) == ("cpu", "shm", False)
    wanted = [{"VLLM_CPU_OMP_THREADS_BIND": cpus} if cpus else {} for cpus in bound]
    assert [seat.environment for seat in placed.engines] == wanted
    assert [seat.seed for seat in placed.engines] == list(range(7, 7 + len(bound)))
    assert [(seat.rank, seat.environment) for seat in placed.ranks] == [(0, {}), (1, {})]


def test_on_a_cpu_what_needs_more_cores_is_refused() -> None:
    told = "rollout.replicas=3: each engine needs 1 core(s) of its own, and here are 2: use 2 or less"
    assert told in refused(config(1, 3), Devices(cores=(0, 1)))


def test_cores_that_the_user_has_bound_one_engine_to_stay_and_several_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("overlap.placement.seats.devices_here", lambda wanted: Devices(cores=(0, 1)))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "auto")
    assert place_here(config()).engines[0].environment
    assert len(place_here(config(1, 2)).engines) == 2
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-1")
    assert not place_here(config()).engines[0].environment
    with pytest.raises(ConfigError, match=r"VLLM_CPU_OMP_THREADS_BIND='0-1': several engines .* unset it"):
        place_here(config(1, 2))


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "expandable_segments"),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64, expandable_segments : true", "expandable_segments"),
        ("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync", "backend:cudaMallocAsync"),
    ],
)
def test_memory_that_can_neither_sleep_nor_be_handed_over_is_refused_where_gpus_are_shared(
    name: str, value: str, option: str
) -> None:
    shared, split = place(config(), Devices.gpus(1)), place(config(), Devices.gpus(2))
    with pytest.raises(ConfigError, match=f"{name}=.*of {option} cannot .*leave it out, or give each GPUs of its own"):
        check_environment(shared, {name: value})
    check_environment(split, {name: value})
    check_environment(shared, {name: "expandable_segments:False,backend:native"})


IPC8 = place(config(2, 0, 8), Devices.gpus(8))


@pytest.mark.parametrize(
    ("placed", "refuses"),
    [
        (IPC8, True),
        (place(config(1, 1, 2), Devices.gpus(2)), True),  # two ranks
        (place(config(2, 1, 1), Devices.gpus(2), learner=False), True),  # one engine on two GPUs
        (place(config(1, 1, 1), Devices.gpus(2)), True),  # weights go by nccl
        (place(config(1, 1, 1), Devices.gpus(1)), False),
        (place(config(1, 1, 2), Devices(cores=(0, 1))), False),
    ],
)
def test_several_gpus_need_more_shared_memory_than_a_container_has_by_default(placed: Placement, refuses: bool) -> None:
    if refuses:
        with pytest.raises(ConfigError, match=r"='64 MiB': .* need 1024 MiB .* --ipc=host or --shm-size"):
            check_shared_memory(placed, Devices(shared=64 << 20))
    else:
        check_shared_memory(placed, Devices(shared=64 << 20))
    check_shared_memory(placed, Devices(shared=1 << 30))
    check_shared_memory(placed, Devices())


def test_the_loop_knows_how_many_engines_the_devices_gave() -> None:
    cfg = config(2, 0, 8)
    placed = place(cfg, Devices.gpus(8))
    for known, sequences in ((placed, 64), (replace(placed, sequences=100), 100)):
        counted = known.counted(cfg)
        assert (counted.rollout.replicas, counted.rollout.sequences) == (4, 4 * sequences)
    assert (cfg.rollout.replicas, cfg.rollout.sequences) == (0, 64)
    given = config(2, 0, 8, max_sequences=7)
    assert replace(placed, sequences=100).counted(given).rollout.max_sequences == 7
    assert place(config(), Devices.gpus(2)).counted(config()) == config()
