"""What a person sees of the memory plan."""

from __future__ import annotations

from shapes import LARGE, SMALL

from overlap.config.load import load_config
from overlap.placement.devices import Devices
from overlap.placement.fit import named_devices, planned_seats
from overlap.placement.memory import MemoryPlan, Use, memory_plan
from overlap.placement.planned_run import PlannedRun
from overlap.placement.table import cache_line, memory_line, memory_table, seats_line

GIB = 2**30


def plan(*settings: str, devices: str = "8x80", shape=LARGE) -> MemoryPlan:
    cfg = load_config(None, ["run.device=cuda", "learn.zero_stage=3", *settings])
    return memory_plan(PlannedRun(cfg, shape), planned_seats(cfg, named_devices(devices)))


def test_gpus_with_the_same_figures_share_a_row_with_the_items_of_their_fullest_phase():
    rows = memory_table(plan("rollout.tensor_parallel=2", "learn.ranks=6"))
    assert rows[0].split() == ["memory,", "GiB", "start", "generate", "sync", "actor", "available"]
    assert [row.split("  ")[0] for row in rows if row.startswith("GPU")] == ["GPU 0-1", "GPU 2-7"]
    assert rows[1].split()[-1] == "80.0"
    assert rows[2].startswith("  sync: KV cache ")
    assert rows[4].startswith("  actor: Adam 18.3, ")


def test_items_and_phases_add_up_to_what_is_told_in_one_line():
    gpu, host = 40 * GIB, 7 * GIB
    uses = (
        Use("engine 0", "GPU 0", "generate", {"own": GIB, "KV cache": 30 * GIB, "small": GIB // 100}),
        Use("rank 0", "GPU 0", "generate", {"own": 2 * GIB}),
        Use("rank 0", "GPU 0", "actor", {"own": 2 * GIB, "Adam": 10 * GIB}),
        Use("rank 0", "host", "generate", {"offloaded states": host}),
    )
    made = MemoryPlan(uses, {"GPU 0": gpu})
    assert memory_table(made) == [
        "memory, GiB     generate     actor  available",
        "GPU 0               33.0      12.0       40.0",
        "  generate: KV cache 30.0, rank process 2.0, engine process 1.0",
        "host                 7.0       0.0          ?",
        "  generate: offloaded states 7.0",
        "  generate: sampling; actor: the policy's optimizer step",
        "  available: of a GPU its memory, of which 96% can be used; of the host what is free (?: unknown)",
    ]
    assert memory_line(made) == "GPU 0 peak 33.0 of 40.0 GiB (phase generate); host peak 7.0 GiB (phase generate)"


def test_gpus_that_are_not_neighbours_are_named_one_by_one():
    uses = tuple(
        Use(f"rank {number}", f"GPU {number}", "actor", {"Adam": size * GIB}) for number, size in enumerate((1, 2, 1))
    )
    assert memory_line(MemoryPlan(uses, {})) == "GPU 0,2 peak 1.0 GiB (phase actor); GPU 1 peak 2.0 GiB (phase actor)"


def test_one_gpu_is_one_row():
    rows = memory_table(plan("learn.offload=sleep", devices="1x80", shape=SMALL))
    assert [row.split("  ")[0] for row in rows if not row.startswith("  ")] == ["memory, GiB", "GPU 0", "host"]


def test_holes_in_the_heap_are_told_apart_from_what_a_run_is_refused_for():
    uses = (Use("rank 0", "machine", "actor", {"Adam": 3 * GIB, "heap": 2 * GIB}),)
    made = MemoryPlan(uses, {"machine": 4 * GIB})
    assert made.shortage() is None
    assert memory_table(made)[1:4] == [
        "machine              3.0        4.0",
        "  actor: Adam 3.0",
        "  and up to 2.0 of heap fragmentation in the ranks, for which no run is refused",
    ]
    assert memory_line(made) == "machine peak 3.0 of 4.0 GiB (phase actor), up to 2.0 more by heap fragmentation"


def test_who_sits_where_is_told_and_who_has_nothing_to_do():
    shared = ["rollout.tensor_parallel=2", "rollout.replicas=0", "learn.ranks=8", "run.device=cuda"]
    lines = {
        "8x80": (shared, "4 vLLM engines of 2 GPUs on GPU 0-7; 8 learner ranks on GPU 0-7; colocated: engine "
                         "and learner take turns; weight transfer by CUDA IPC"),
        "4x80": (["rollout.replicas=1"], "1 vLLM engine of 1 GPU on GPU 0; 1 learner rank on GPU 1; "
                                         "weight transfer by NCCL; unused: GPU 2-3"),
        "2x80": (["rollout.replicas=1", "learn.ranks=2"],
                 "1 vLLM engine of 1 GPU on GPU 0; 2 learner ranks on GPU 0-1; colocated: engine and learner take "
                 "turns; weight transfer by CUDA IPC; "
                 "no engine on GPU 1, idle during generation (rollout.replicas=0 uses all)"),
        "3x80": ([], "2 vLLM engines of 1 GPU on GPU 0-1; 1 learner rank on GPU 2; weight transfer by NCCL"),
    }  # fmt: skip
    for devices, (settings, line) in lines.items():
        assert seats_line(planned_seats(load_config(None, settings), named_devices(devices))) == line
    cpu = planned_seats(load_config(), Devices())
    assert seats_line(cpu) == "1 vLLM engine on the CPU; 1 learner rank on the CPU; weight transfer by shared memory"


def test_what_an_engines_cache_holds_is_told_in_sequences_of_full_length():
    settings = ["rollout.tensor_parallel=2", "rollout.gpu_memory=0.8", "run.device=cuda", "learn.ranks=6"]
    settings += ["model.prompt_tokens=2048", "model.response_tokens=32768", "learn.micro_batch_tokens=34816"]
    cfg = load_config(None, settings)
    told = "523,374 tokens per engine: 15 sequences of full length (34,816 tokens) at once, up to "
    assert (
        cache_line(PlannedRun(cfg, LARGE), planned_seats(cfg, named_devices("8x80")))
        == told + "rollout.max_sequences=45 shorter ones"
    )
    assert not cache_line(PlannedRun(cfg, LARGE), planned_seats(cfg, Devices.gpus(8)))
