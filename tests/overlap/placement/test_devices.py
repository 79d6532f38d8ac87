"""What a machine has, by doubles of the driver's tool and of torch's files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from overlap.config.fields import Config
from overlap.core.errors import ConfigError
from overlap.placement import devices
from overlap.placement.devices import Devices, devices_here, listed, physical_cores, torch_has_cuda, visible

GIB = 2**30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Gives the machine a torch for CUDA and so many GPUs, of these bytes."""

    def gives(*sizes: int, cuda: bool = True) -> None:
        monkeypatch.setattr(devices, "torch_has_cuda", lambda: cuda)
        monkeypatch.setattr(devices, "listed", lambda: sizes)

    return gives


def test_gpus_are_counted_and_the_smallest_gives_the_bytes(machine) -> None:
    machine(80 * GIB, 40 * GIB)
    found = devices_here("auto", {})
    assert (found.kind, found.names, found.bytes) == ("cuda", ("0", "1"), 40 * GIB)
    assert devices_here("cpu", {}).kind == "cpu"
    machine(80 * GIB, cuda=False)
    assert devices_here("auto", {}) == Devices(cores=found.cores)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, ("0", "1", "2", "3")),
        ("2,3", ("2", "3")),
        (" 1 , 0", ("1", "0")),
        ("0,-1,2", ("0",)),
        ("0,7,2", ("0",)),
        ("", ()),
        ("NoDevFiles", ()),
        ("1,1", ()),
        ("0,00", ()),
        ("\u00b2", ()),
        ("GPU-5e,GPU-6f", ("GPU-5e", "GPU-6f")),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(given: str | None, names: tuple[str, ...]) -> None:
    assert visible(4, given) == names
    assert visible(0, given) == ()


def test_shared_memory_is_what_is_mounted_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "SHM", tmp_path)
    assert devices_here("cpu", {}).shared == shutil.disk_usage(tmp_path).total
    monkeypatch.setattr(devices, "SHM", tmp_path / "none")
    assert devices_here("cpu", {}).shared == 0


@pytest.mark.parametrize(
    ("environ", "gib"),
    [
        ({}, 4),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5e"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, 0),
    ],
)
def test_a_small_gpu_that_is_hidden_bounds_nothing(machine, environ: dict[str, str], gib: int) -> None:
    machine(80 * GIB, 80 * GIB, 4 * GIB)
    assert devices_here("auto", environ).bytes == gib * GIB


@pytest.mark.parametrize(
    ("sizes", "cuda", "environ", "reason"),
    [
        ((), True, {}, "the driver shows no GPU"),
        ((1,), False, {}, "this torch is built without CUDA"),
        ((1,), True, {"CUDA_VISIBLE_DEVICES": "3"}, "CUDA_VISIBLE_DEVICES=3 hides every GPU"),
    ],
)
def test_a_gpu_that_is_asked_for_and_not_there_is_refused_with_the_reason(
    machine, sizes, cuda: bool, environ: dict[str, str], reason: str
) -> None:
    machine(*sizes, cuda=cuda)
    with pytest.raises(ConfigError, match=rf"run\.device='cuda': {reason}: use auto or cpu"):
        devices_here("cuda", environ)


@pytest.mark.parametrize(
    ("body", "sizes"),
    [
        ("printf '81559\\n[N/A]\\n'", (81559 * 2**20, 0)),
        ("echo 'no driver'; exit 9", (0, 0, 0)),
        (None, (0, 0, 0)),
    ],
)
def test_the_drivers_tool_is_asked_and_where_it_fails_the_nodes_are_counted(
    body: str | None, sizes: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if body else str(tmp_path))
    monkeypatch.setattr(devices, "_nodes", lambda: (0, 0, 0))
    if body:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    assert listed.__wrapped__() == sizes


@pytest.mark.parametrize(
    ("line", "built"), [("cuda: Optional[str] = None", False), ("cuda = '13.0'", True), ("", False)]
)
def test_torch_is_asked_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, built: bool) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('nobody imports it')\n")
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2'\n{line}\nhip = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert torch_has_cuda() is built


def test_one_cpu_of_each_physical_core_counts(tmp_path: Path) -> None:
    for cpu, siblings in ((0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert physical_cores([0, 1, 2, 3], tmp_path) == (2, 3)
    assert physical_cores([0, 1], tmp_path) == (0, 1)
    assert physical_cores([4, 5], tmp_path) == (4, 5)


def group(folder: Path, limit: str, usage: int, names: tuple[str, str, str] = devices._V2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {GIB}\n")


@pytest.mark.parametrize(
    ("text", "places", "rooms"),
    [
        # group of the process → folders with limit and usage in GiB → what each leaves
        ("0::/job/step\n", {"": ("max", 90), "job": (8, 5), "job/step": (16, 2)}, [4, 15]),
        ("4:memory:/docker/x\n1:cpu:/docker/x\n", {"memory": (6, 4)}, [3]),  # the older kind, as a container sees it
        ("0::/\n", {}, []),
        ("", {}, []),
        (None, {}, []),
    ],
)
def test_every_limit_above_a_process_counts_and_unused_pages_of_files_are_free(
    tmp_path: Path, text: str | None, places: dict[str, tuple[int | str, int]], rooms: list[int]
) -> None:
    own = tmp_path / "own"
    if text is not None:
        own.write_text(text)
    for name, (limit, usage) in places.items():
        of = devices._V1 if name == "memory" else devices._V2
        group(tmp_path / "groups" / name, str(limit * GIB if isinstance(limit, int) else limit), usage * GIB, of)
    assert sorted(devices._rooms(tmp_path / "groups", own)) == [room * GIB for room in rooms]


def test_a_limit_is_less_than_what_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (own := tmp_path / "own").write_text("0::/\n")
    group(tmp_path / "groups", str(GIB), GIB - 1000)
    monkeypatch.setattr(devices, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(devices, "_OWN", own)
    assert devices.free_memory() <= GIB + 1000
    group(tmp_path / "groups", str(GIB), 3 * GIB)
    assert devices.free_memory() == 0


@pytest.mark.parametrize(
    ("flags", "native"),
    [
        ("flags : fpu sse2 avx2 fma", False),
        ("flags : sse2 avx2 avx512bw avx512_bf16", False),
        ("flags : sse2 avx512f avx512bw avx512_bf16 amx_bf16", True),
        ("Features : fp asimd", False),
        ("Features : fp asimd bf16", True),
        ("isa : rv64imafdc", True),
    ],
)
def test_a_processor_that_is_slower_in_bfloat16_is_known(tmp_path: Path, flags: str, native: bool):
    (told := tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    assert devices.bfloat16_is_fast(told) == native
    assert devices.bfloat16_is_fast(tmp_path / "none")


@pytest.mark.parametrize(
    ("names", "fast", "settings", "taken"),
    [
        ((), False, {}, "float32"),
        ((), True, {}, "bfloat16"),
        (("0",), False, {}, "bfloat16"),
        ((), False, {"model.dtype": "bfloat16"}, "bfloat16"),
        (("0",), True, {"model.dtype": "float32"}, "float32"),
        ((), False, {"cluster.address": "10.0.0.1:6379"}, "bfloat16"),
        ((), False, {"cluster.address": "10.0.0.1:6379", "run.device": "cpu"}, "float32"),
    ],
)
def test_the_number_type_of_a_run_is_the_one_asked_for_or_the_one_that_its_machine_computes_faster(
    names: tuple[str, ...], fast: bool, settings: dict[str, str], taken: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(devices, "devices_here", lambda wanted: devices.Devices(names))
    monkeypatch.setattr(devices, "bfloat16_is_fast", lambda: fast)
    assert devices.with_dtype(Config().replace(settings)).model.dtype == taken
