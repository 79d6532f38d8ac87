"""Weights through CUDA's memory handles: a learner's rank, a stand-in for an engine's worker, and the device's memory.

Learner and sender are the real ones. The worker opens, copies and closes as vLLM's does, and compares what it got with
the policy that the learner has saved.
"""

from __future__ import annotations

import asyncio
import base64
import multiprocessing
import os
import pickle
import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import packed_ipc
from _rows import MIB, Place, Row, apart, attempt, said
from _runs import Subject, config, make_subject, new_folder

from overlap.config.fields import Config
from overlap.learner.learner import ProcessLearner
from overlap.placement.seats import EngineSeat, Placement, RankSeat, place_here

SYNCS = {("cuda", 2): 50, ("cuda", 3): 12, ("cpu", 2): 4, ("cpu", 3): 4}  # by device and ZeRO stage
BUFFER = {"cuda": 12 * MIB, "cpu": 100_000}  # bytes: the policy takes several
SETTLED = 3  # syncs, after which memory should no longer grow
GROWN = 64  # MiB that it may grow by: what an allocator keeps
ALONE = {"cuda": 6, "cpu": 2}  # passes of a rank that nobody reads from
NUMBERS = {"cuda": 400_000_000, "cpu": 40_000}  # of each of its two tensors, in bfloat16
WAIT_S = 60.0
PACKAGE = ("vllm", "distributed", "weight_transfer")


def checks(place: Place) -> Iterator[Row]:
    """One reader, a reader that dies, and none."""
    stand_in = _put_stand_in(place)
    subject = make_subject(place.scratch / "policy", rehearses=place.rehearses)
    os.environ[packed_ipc.CHUNK] = str(BUFFER[place.device])  # for the ranks
    for zero in (2, 3):
        name = f"{SYNCS[place.device, zero]} syncs under ZeRO {zero}"
        row = attempt(name, partial(_synced, place, subject, zero))
        if stand_in and row.get("chunks") == 1:  # one open buffer for several chunks is what counters are about
            row |= {"ok": False, "why": "all weights came in one chunk"}
        yield row | {"stand_in": stand_in}
    del os.environ[packed_ipc.CHUNK]
    for read in (True, False):
        yield from apart(_unread, place, read)


def _put_stand_in(place: Place) -> bool:
    """Where vLLM is missing, or there is no GPU: a package of its name, for this process and those that it starts."""
    from importlib.util import find_spec

    if not place.rehearses and find_spec("vllm") is not None:
        return False
    folder = place.scratch / "stand-in"
    package = folder.joinpath(*PACKAGE)
    package.mkdir(parents=True)
    for depth in range(len(PACKAGE)):
        folder.joinpath(*PACKAGE[: depth + 1], "__init__.py").touch()
    shutil.copyfile(Path(packed_ipc.__file__), package / "packed_tensor.py")
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    if place.rehearses:
        os.environ["TMPDIR"] = str(place.scratch)
    return True


# --- a learner and a worker ---------------------------------------------------------------------------------


def _synced(place: Place, subject: Subject, zero: int) -> Row:
    cfg = config(place.device, zero_stage=zero, dtype="bfloat16", offload="sleep")
    return asyncio.run(_sync_often(place, subject, cfg, place.scratch / f"ipc-{zero}"))


async def _sync_often(place: Place, subject: Subject, cfg: Config, scratch: Path) -> Row:
    """Half of the syncs, a step, the other half; then a worker that dies while it reads, and one more."""
    learner = ProcessLearner(
        cfg, subject.policy, new_folder(scratch), log=scratch / "log", total_updates=3, placement=_placement(cfg, place)
    )
    worker = Worker()
    syncs, free, took, version = SYNCS[place.device, cfg.learn.zero_stage], list[float | None](), list[float](), 0
    try:
        await learner.start()
        for number in range(syncs):
            if number in (0, syncs // 2):  # what a first step takes for good is not counted
                version = (await learner.step(subject.batch(version))).version
                await learner.sleep()
            if number in (0, syncs // 2, syncs - 1):
                await learner.save(scratch / f"saved-{number}", kind="policy")
                await worker.ask("expect", str(scratch / f"saved-{number}"))
            began = time.monotonic()
            chunks = await _sync(learner, worker, version)
            took.append(time.monotonic() - began)
            await learner.sleep()
            free.append(await learner.free("synced"))
        died = await _outlives(learner, worker, version)
        worker = Worker()
        await worker.ask("expect", str(scratch / f"saved-{syncs - 1}"))
        await _sync(learner, worker, version)
        after = await learner.free("after a death")
    finally:
        worker.end()
        await learner.close()
    grown = _grown(free)
    return {
        "ok": grown is None or grown <= GROWN,
        "chunks": chunks,
        "grown_mib": grown,
        "grown_by_a_death_mib": (free[-1] - after) * 1024 if free[-1] is not None and after is not None else None,
        "refused": died,
        "sync_s": sorted(took)[len(took) // 2],
        "first_sync_s": took[0],
        "free_gib": [round(one, 3) for one in free if one is not None][::5],
        "counters_left": sum(name.startswith("torch_") for name in os.listdir("/dev/shm")),
    }


def _placement(cfg: Config, place: Place) -> Placement:
    """An engine and a rank on one device; no CPU has such a placement."""
    if not place.rehearses:
        return place_here(cfg)
    return Placement("cpu", "ipc", (EngineSeat(0, 0, devices=(0,)),), (RankSeat(0, 0, devices=(0,), visible="0"),))


def _grown(free: list[float | None]) -> float | None:
    """MiB."""
    first, last = free[min(SETTLED, len(free) - 1)], free[-1]
    return None if first is None or last is None else (first - last) * 1024


async def _sync(learner: ProcessLearner, worker: Worker, version: int) -> int:
    """As a run does it: publish, chunk by chunk, commit, retire. Returns the number of chunks.

    Raises AssertionError for weights that differ from those that were saved.
    """
    update = await learner.publish(version)
    assert update.chunks is not None
    chunks = 0
    async for chunk in update.chunks():
        await worker.ask("load", dict(chunk))
        chunks += 1
    wrong = await worker.ask("commit", None)
    await learner.retire(update)
    assert not wrong, f"{len(wrong)} weights differ from those that were saved, such as {wrong[0]}"
    return chunks


async def _outlives(learner: ProcessLearner, worker: Worker, version: int) -> str:
    """A worker that dies with the buffer open; returns what was raised."""
    update = await learner.publish(version)
    assert update.chunks is not None
    try:
        async for chunk in update.chunks():
            await worker.ask("load", dict(chunk))
            await worker.ask("die", None)
    except EOFError as error:
        return type(error).__name__
    finally:
        await learner.retire(update, loaded=False)
        worker.end()
    return ""


class Worker:
    """An engine's worker, in a process of its own."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    async def ask(self, what: str, value: Any) -> Any:
        """Raises EOFError when it is dead, RuntimeError with what it raised."""

        def ask() -> Any:
            self._pipe.send((what, value))
            if not self._pipe.poll(WAIT_S):
                raise TimeoutError(f"the worker did not answer {what!r} within {WAIT_S:g} s")
            return self._pipe.recv()

        ok, answer = await asyncio.to_thread(ask)
        if not ok:
            raise RuntimeError(f"the worker: {answer}")
        return answer

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.join(10)
        self._pipe.close()


def _work(pipe: Any) -> None:
    """Serve ``Worker.ask`` until the pipe closes."""
    importer, expected, got = packed_ipc.Importer(), dict[str, Any](), dict[str, Any]()
    while True:
        try:
            what, value = pipe.recv()
        except EOFError:
            return
        try:
            answer: Any = None
            if what == "expect":
                from safetensors.torch import load_file

                (file,) = Path(value).glob("*.safetensors")
                expected = load_file(file, device="cuda" if packed_ipc.CUDA else "cpu")
            elif what == "load":
                got |= _copied(value, importer)
            elif what == "commit":
                importer.close()
                answer, got = _differing(got, expected), {}
            elif what == "die":
                os._exit(1)
            packed_ipc.settle()
            pipe.send((True, answer))
        except Exception as error:
            pipe.send((False, said(error)))


def _copied(chunk: dict[str, Any], importer: Any) -> dict[str, Any]:
    """The tensors of a chunk, in memory of their own."""
    import torch

    handles = pickle.loads(base64.b64decode(chunk["handles"]))
    (export,) = handles.values()
    buffer, start, found = importer.open(export), 0, {}
    for name, shape, dtype, size in zip(
        chunk["names"], chunk["shapes"], chunk["dtype_names"], chunk["tensor_sizes"], strict=True
    ):
        found[name] = buffer[start : start + size].clone().view(getattr(torch, dtype)).view(shape)
        start += size
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return found


def _differing(got: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Names of tensors that are missing, too many, or not equal."""
    import torch

    both = got.keys() & expected.keys()
    tied = {"lm_head.weight"}  # saved or not, it is the embedding
    strays = (got.keys() ^ expected.keys()) - tied
    return sorted(strays | {name for name in both if not torch.equal(got[name], expected[name])})


# --- a rank that nobody reads from --------------------------------------------------------------------------


def _unread(place: Place, read: bool) -> Iterator[Row]:
    """What the device's memory loses in each pass: where the rank exports all the same (``read``), and as it should."""
    check = "no reader, exported all the same: torch frees none" if read else "no reader, nothing exported"
    yield attempt(check, partial(_passes, place, read))


def _passes(place: Place, read: bool) -> Row:
    free, chunks, size = packed_ipc.pass_alone(NUMBERS[place.device], ALONE[place.device], read=read)
    lost = [round((a - b) / MIB) for a, b in pairwise(free)]
    row = {"lost_mib": lost, "chunks": chunks, "buffer_mib": size / MIB}
    if not lost:
        return {"ok": None, "why": "a CPU has no exports", **row}
    # The first row shows what the mend is for: were nothing lost, it would not be needed.
    ok = min(lost) > row["buffer_mib"] / 2 if read else max(lost) <= GROWN
    return {"ok": ok, **row}
