"""What a person sees of the memory plan."""

from __future__ import annotations

from shapes import LARGE

from overlap.config.load import load_config
from overlap.placement.devices import Devices
from overlap.placement.fit import named_devices, planned_seats
from overlap.placement.memory import MemoryNeed, memory_plan
from overlap.placement.planned_run import PlannedRun, Seats
from overlap.placement.table import amount, cache_line, memory_lines, seats_line

GIB = 2**30
NONE = Seats((), (), (), False, "shm")


def test_an_amount_is_what_is_needed_at_worst_and_free() -> None:
    assert amount(9.3 * GIB, 15.4 * GIB, 22.5 * GIB) == "needs 9.3 GiB (at worst 15.4), 22.5 free"
    assert amount(9.3 * GIB, 9.3 * GIB, 0) == "needs 9.3 GiB, free is not known"
    assert amount(2**20, 2**20, GIB) == "needs 0.00098 GiB, 1.0 free"


def test_gpus_with_the_same_figures_share_a_row_with_the_items_of_their_fullest_moment() -> None:
    cfg = load_config(None, ["run.device=cuda", "learn.zero_stage=3", "rollout.tensor_parallel=2", "learn.ranks=6"])
    seats = planned_seats(cfg, named_devices("8x80"))
    rows = [row for _, row in memory_lines(memory_plan(PlannedRun(cfg, LARGE), seats), seats)]
    assert rows[0].startswith("GPU 0-1 needs 53.")
    assert "GiB, 76.8 free; most during the weight transfer: KV cache " in rows[0]
    assert rows[1].startswith("GPU 2-7 needs ")
    assert "; most during learning: master and Adam 27.5, " in rows[1]
    assert rows[2] == "/dev/shm needs 1.0 GiB, free is not known; GPUs talk to each other by it, too"


def test_gpus_that_are_not_neighbours_are_named_one_by_one() -> None:
    needs = [MemoryNeed(f"GPU {n}", "learning", {"weights": size * GIB, "small": 9}, 0, size * GIB + 9)
             for n, size in enumerate((1, 2, 1))]  # fmt: skip
    assert [row for _, row in memory_lines(needs, NONE)] == [
        "GPU 0,2 needs 1.0 GiB, free is not known; most during learning: weights 1.0",
        "GPU 1 needs 2.0 GiB, free is not known; most during learning: weights 2.0",
    ]


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
