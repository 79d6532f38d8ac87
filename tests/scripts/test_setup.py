"""scripts/setup.sh on a stand-in machine: what it refuses, what it recognises, what it repairs.

The stand-in is a PATH with a few small programs. Its ``python3.11`` makes an "environment" whose ``site`` folder gets
an empty file for each pin. The real set-up is what scripts/test.sh runs before any of this.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

TOOLS = (
    *("awk", "bash", "cat", "cp", "cut", "dirname", "find", "flock", "grep", "head", "mkdir", "mv"),
    *("realpath", "rm", "sha256sum", "sleep", "sort", "tail", "timeout", "touch", "uname", "wc", "xargs"),
)
# Probes go to the real interpreter unless LACKS says what the machine has not; making and installing are acted.
PYTHON = """#!/usr/bin/env bash
here=$(dirname "$(realpath -s "$0")")
[ -n "${LACKS:-}" ] && [[ "$*" == *"$LACKS"* ]] && exit 1
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" "$3/site"; cp "$0" "$3/bin/python" ;;
  "-m pip install "*) cp "$STAND_IN/uv-stand-in" "$here/uv" ;;
  "-m pip download "*) exit 1 ;;
  "-m pip --version") [ -d "$here/../site" ] ;;
  "-m recipes."*) echo "${PATH%%:*}" "$@" ;;
  *checks/environment.py*)
    shift 3
    cat "$@" | grep == | while read -r pin; do [ -e "$here/../site/$pin" ] || exit 1; done ;;
  *) exec "$REAL_PYTHON" "$@" ;;
esac
"""
UV = """#!/usr/bin/env bash
here=$(dirname "$(realpath -s "$0")")
echo "$*" >>"$STAND_IN/calls"
if [ -n "${BREAKS:-}" ]; then echo "$BREAKS"; exit 2; fi
if [[ "$*" == *" -e ." ]]; then cp "$STAND_IN/overlap-stand-in" "$here/overlap"; exit; fi
touch "$here/../site/half-installed"
if [ -n "${HANGS:-}" ]; then (trap '' TERM; exec sleep 60) & echo $$ >"$HANGS"; sleep 60; fi
cat requirements/cpu.txt requirements/dev.txt | grep == | (cd "$here/../site" && xargs touch)
rm "$here/../site/half-installed"
"""
OVERLAP = """#!/usr/bin/env bash
echo "${PATH%%:*}" "$@"
"""
NVIDIA_SMI = """#!/usr/bin/env bash
case "$1" in -L) echo "$GPUS" ;; *) echo "$DRIVER" ;; esac
"""
DF = """#!/usr/bin/env bash
printf 'a b c Available\\na b c %s\\n' $((${FREE_GIB:-100} * 1048576))
"""


class Machine:
    """A clone of the scripts, and the programs that they find."""

    def __init__(self, folder: Path) -> None:
        self.clone, self.bin, self.venv = folder / "clone", folder / "bin", folder / "clone/.venv"
        self.bin.mkdir(parents=True)
        for name in ("scripts", "requirements"):
            shutil.copytree(ROOT / name, self.clone / name)
        for name in ("setup.cfg", "pyproject.toml"):
            shutil.copy(ROOT / name, self.clone)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or f"/{tool}-is-missing")
        programs = {"python3.11": PYTHON, "uv-stand-in": UV, "overlap-stand-in": OVERLAP, "g++": OVERLAP, "df": DF}
        for name, text in programs.items():
            self.program(name, text)

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def start(self, *arguments: str, script: str = "setup.sh", **extra: str) -> subprocess.Popen[str]:
        environment = {"PATH": str(self.bin), "STAND_IN": str(self.bin), "REAL_PYTHON": sys.executable, **extra}
        command = [str(self.bin / "bash"), f"scripts/{script}", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.clone, env=environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: str, code: int = 0, script: str = "setup.sh", **extra: str) -> str:
        """What the script prints; its last line is the one on standard error, where there is one."""
        with self.start(*arguments, script=script, **extra) as process:
            out, err = process.communicate(timeout=60)
        assert process.returncode == code, out + err
        return out + err

    def train(self, gpus: int, *words: str, **extra: str) -> str:
        """What the default run would do here with so many GPUs: the last line."""
        shutil.copy(self.clone / "requirements/cpu.txt", self.clone / "requirements/cuda.txt")
        self.program("nvidia-smi", NVIDIA_SMI)
        shown = "\n".join(f"GPU {n}: NVIDIA H100" for n in range(gpus))
        said = self.run(*words, script="train_deepcoder.sh", GPUS=shown, DRIVER="580.1", **extra)
        return said.splitlines()[-1]

    def installs(self) -> int:
        """How many times the packages were installed."""
        calls = self.bin / "calls"
        return sum(" -e ." not in call for call in calls.read_text().splitlines()) if calls.exists() else 0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# --- CPU or CUDA ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "device"), [("GPU 0: NVIDIA H200 (UUID: x)", "cuda"), ("No devices found", "cpu"), ("", "cpu")]
)
def test_the_device_is_cuda_only_where_a_gpu_is_listed(machine: Machine, gpus: str, device: str) -> None:
    if gpus:
        machine.program("nvidia-smi", NVIDIA_SMI)
    assert machine.run("--device", GPUS=gpus) == f"{device}\n"
    assert machine.run("--device", GPUS=gpus, OVERLAP_DEVICE="cpu") == "cpu\n"


def test_the_driver_s_devices_are_gpus_where_its_tool_is_not_on_the_path(machine: Machine) -> None:
    """In a mount namespace whose /dev has one."""
    dev = machine.bin.parent / "dev"
    dev.mkdir()
    for name in ("null", "nvidia0"):
        (dev / name).touch()
    mounts = f'mount --bind /dev/null {dev}/null && mount --rbind {dev} /dev && PATH={machine.bin} exec bash "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounts, "sh"]
    try:
        subprocess.run([*command, "-c", ":"], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no user namespaces here")
    asked = {"capture_output": True, "text": True, "timeout": 60, "cwd": machine.clone}
    environment = {name: value for name, value in os.environ.items() if name != "OVERLAP_DEVICE"}
    for tool, device in ((None, "cuda"), (NVIDIA_SMI, "cpu")):  # the tool says "", so the devices are of no use
        if tool is not None:
            machine.program("nvidia-smi", tool)
        done = subprocess.run([*command, "scripts/setup.sh", "--device"], env=environment | {"GPUS": ""}, **asked)
        assert done.stdout == f"{device}\n", done.stderr


@pytest.mark.parametrize(
    ("gpus", "given", "says"),
    [
        ("GPU 0: NVIDIA H200", {}, ".venv-cpu, cpu)"),
        ("GPU 0: NVIDIA H200", {"OVERLAP_DEVICE": "cuda"}, ".venv, cuda)"),
        ("", {}, ".venv, cpu)"),
    ],
)
def test_tests_run_on_the_cpu_in_an_environment_of_their_own_where_there_is_a_gpu(
    machine: Machine, gpus: str, given: dict[str, str], says: str
) -> None:
    shutil.copy(machine.clone / "requirements/cpu.txt", machine.clone / "requirements/cuda.txt")
    machine.program("nvidia-smi", NVIDIA_SMI)
    said = machine.run(script="test.sh", code=1, GPUS=gpus, DRIVER="580.1", LACKS="-m pytest", **given)
    assert said.splitlines()[-1].startswith("setup: ready in ")
    assert said.splitlines()[-1].endswith(f"/{says}")


# --- what the machine lacks -----------------------------------------------------------------------------

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
OLD_PYTHON = '#!/usr/bin/env bash\n[ "$1" = --version ] && echo Python 3.9.18\n'
INSTALL = "apt-get install python3.11 python3.11-venv python3.11-dev"
# what is said: programs that are others or not there, words, environment
LACKING: dict[str, tuple[dict[str, str | None], str, dict[str, str]]] = {
    "OVERLAP_DEVICE is 'tpu': use cpu or cuda": ({}, "", {"OVERLAP_DEVICE": "tpu"}),
    "the NVIDIA driver is 550.54.15, CUDA 13 wants 580.*OVERLAP_DEVICE=cpu": (
        {"nvidia-smi": NVIDIA_SMI},
        "",
        {"GPUS": "GPU 0: x", "DRIVER": "550.54.15"},
    ),
    rf"^setup: no Python >= 3.11 found \(no python3\): {INSTALL}$": ({"python3.11": None}, "", {}),
    rf"no Python >= 3.11 found \(Python 3.9.18\): {INSTALL}": ({"python3.11": None, "python3": OLD_PYTHON}, "", {}),
    "OVERLAP_PYTHON is 'mine', which is no Python >= 3.11": (
        {"mine": "#!/usr/bin/env bash\nexit 1\n"},
        "",
        {"OVERLAP_PYTHON": "mine"},
    ),
    r"^setup: no C\+\+ compiler \(g\+\+\): apt-get install g\+\+$": ({"g++": None}, "", {}),
    "the packages want glibc 2.31 or newer .*: use a newer system": ({}, "", {"LACKS": "CS_GNU_LIBC_VERSION"}),
    f": apt-get install python{VERSION}-venv$": ({}, "", {"LACKS": "import venv"}),
    f": apt-get install python{VERSION}-dev$": ({}, "", {"LACKS": "Python.h"}),
    "1 GiB free under": ({}, "", {"FREE_GIB": "1"}),
    "unknown argument '--gpu'": ({}, "--gpu", {}),
}


@pytest.mark.promise("setup")
@pytest.mark.parametrize("says", LACKING)
def test_what_the_machine_lacks_is_one_line_with_its_repair_before_anything_is_made(
    machine: Machine, says: str
) -> None:
    programs, words, environment = LACKING[says]
    for program, text in programs.items():
        if text is None:
            (machine.bin / program).unlink()
        else:
            machine.program(program, text)
    (line,) = machine.run(*words.split(), code=2, **environment).splitlines()
    assert re.search(says, line), line
    assert not machine.venv.exists()


# --- ready, or not yet ----------------------------------------------------------------------------------


@pytest.mark.promise("setup")
def test_a_second_set_up_installs_nothing(machine: Machine) -> None:
    assert "setup: ready in " in machine.run()
    assert machine.run() == f"setup: ready ({machine.venv}, cpu)\n"
    assert machine.installs() == 1


@pytest.mark.parametrize("lost", [False, True])
def test_a_changed_pin_and_a_lost_package_are_installed(machine: Machine, lost: bool) -> None:
    machine.run()
    if lost:
        pin = next((machine.venv / "site").glob("pytest==*"))
        pin.unlink()
    else:
        pin = machine.venv / "site/one-more==1.0"
        with (machine.clone / "requirements/cpu.txt").open("a") as lock:
            lock.write("one-more==1.0\n")
    machine.run()
    assert pin.exists()


def test_a_clone_that_was_moved_is_set_up_from_nothing(machine: Machine) -> None:
    machine.run()
    (machine.venv / "site/mine").touch()
    machine.clone = machine.clone.rename(machine.clone.parent / "elsewhere")
    assert "setup: ready in " in machine.run()
    assert not (machine.clone / ".venv/site/mine").exists(), "its programs still name the old path"


def test_another_directory_can_be_named_but_not_one_that_is_no_environment(machine: Machine, tmp_path: Path) -> None:
    assert f"({tmp_path}/other, cpu)" in machine.run(OVERLAP_VENV=str(tmp_path / "other"))
    assert not machine.venv.exists()
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letter").touch()
    assert "is no virtual environment" in machine.run(code=2, OVERLAP_VENV=str(tmp_path / "home"))
    assert (tmp_path / "home/letter").exists()


# --- bad days -------------------------------------------------------------------------------------------


@pytest.fixture
def interrupted(machine: Machine, request: pytest.FixtureRequest) -> Machine:
    """A machine whose set-up was ended by a signal in the middle of the installation."""
    fifo = machine.bin / "hanging"
    os.mkfifo(fifo)
    with machine.start(HANGS=str(fifo)) as process:
        installer = int(fifo.read_text())
        death = os.pidfd_open(installer)
        process.send_signal(request.param)
        if request.param is signal.SIGKILL:  # nobody is left to end the installer, as when the power fails
            os.killpg(os.getpgid(installer), signal.SIGKILL)
        process.communicate(timeout=30)
    assert process.returncode in (-request.param, 128 + request.param)
    dead, _, _ = select.select([death], [], [], 30)
    os.close(death)
    assert dead, "the installer outlived the set-up"
    return machine


@pytest.mark.parametrize("interrupted", [signal.SIGINT, signal.SIGKILL], indirect=True)
def test_an_interrupted_set_up_is_made_from_nothing_by_the_next(interrupted: Machine) -> None:
    (interrupted.venv / "site/half-installed-too").touch()
    assert "setup: ready in " in interrupted.run()
    assert not list((interrupted.venv / "site").glob("half-installed*"))
    assert interrupted.run().startswith("setup: ready (")


def test_an_environment_of_someone_else_is_repaired_without_being_emptied(machine: Machine) -> None:
    machine.run()
    for name in ("setup.owner", "setup.stamp"):
        (machine.venv / name).unlink()
    (machine.venv / "setup.incomplete").touch()
    (machine.venv / "site/mine").touch()
    machine.run()
    assert (machine.venv / "site/mine").exists()
    assert " --reinstall " in (machine.bin / "calls").read_text().splitlines()[-2]


def test_a_second_set_up_waits_for_the_first_and_then_has_nothing_to_do(machine: Machine) -> None:
    machine.run()
    stamp = machine.venv / "setup.stamp"
    with (machine.venv / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        hidden = stamp.rename(machine.venv / "hidden")
        with machine.start() as process:
            assert process.stdout is not None
            assert "another set-up is running" in process.stdout.readline()
            hidden.rename(stamp)
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert process.communicate(timeout=30)[0] == f"setup: ready ({machine.venv}, cpu)\n"
    assert machine.installs() == 1


@pytest.mark.promise("setup")
@pytest.mark.parametrize(
    ("breaks", "code", "says"),
    [
        ("error sending request for url", 2, "the package registry cannot be reached"),
        ("write failed: No space left on device", 2, "the disk is full"),
        ("something else", 1, "failed (exit code 2); log: "),
    ],
)
def test_a_failed_installation_shows_its_log_and_then_the_way_out(
    machine: Machine, breaks: str, code: int, says: str
) -> None:
    *shown, last = machine.run(code=code, BREAKS=breaks).splitlines()
    assert breaks in shown
    assert says in last
    assert "setup: ready in " in machine.run()


# --- its callers ----------------------------------------------------------------------------------------


CONFIGS = "recipes/code_rl/configs"
STAGES = "-m recipes.code_rl.stages --prepare runs/deepcoder_data.jsonl"
WHOLE = f"{STAGES} {CONFIGS}/deepcoder_14b_16k.yaml {CONFIGS}/deepcoder_14b_32k.yaml"


@pytest.mark.parametrize(
    ("gpus", "words", "expected"),
    [
        (0, "run.steps=3 --dry-run", f"train --config {CONFIGS}/cpu_smollm2.yaml run.steps=3 --dry-run"),
        (8, "run.steps=3 --dry-run", f"{WHOLE} run.steps=3 --dry-run"),
        (1, "", f"{STAGES} {CONFIGS}/deepcoder_1.5b_1gpu.yaml"),
        (8, "--resume run.dir=runs/a", "train --resume run.dir=runs/a"),
        (0, "--dry-run --devices 8x80", f"{WHOLE} --dry-run --devices 8x80"),
        (8, "--dry-run --devices=2x24", f"{STAGES} {CONFIGS}/deepcoder_1.5b_1gpu.yaml --dry-run --devices=2x24"),
    ],
)
def test_the_default_run_is_the_one_that_fits_the_machine(
    machine: Machine, gpus: int, words: str, expected: str
) -> None:
    assert machine.train(gpus, *words.split()) == f"{machine.venv}/bin {expected}".rstrip()


@pytest.mark.parametrize(
    ("shown", "whole"), [("0,1,2,3", False), ("GPU-5e", False), ("", False), ("0,1,2,3,4,5,6,7", True)]
)
def test_gpus_that_are_hidden_are_not_counted(machine: Machine, shown: str, whole: bool) -> None:
    said = machine.train(8, CUDA_VISIBLE_DEVICES=shown)
    assert ("deepcoder_14b_16k" in said, "deepcoder_1.5b_1gpu" in said) == (whole, not whole)


@pytest.mark.parametrize(("script", "module"), [("eval_deepcoder.sh", "evaluate"), ("prepare_deepcoder.sh", "prepare")])
def test_the_other_commands_set_up_and_hand_their_words_on(machine: Machine, script: str, module: str) -> None:
    said = machine.run("a policy", "--limit", "3", script=script, OVERLAP_DEVICE="cpu")
    assert said.splitlines()[-1] == f"{machine.venv}/bin -m recipes.code_rl.{module} a policy --limit 3"


def test_the_real_check_names_what_an_environment_lacks(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("# a note\nPyTest==9.2.0\nno_such.package==1.0\n")
    command = [sys.executable, "-I", str(ROOT / "scripts/checks/environment.py"), "pytest", str(lock)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stdout) == (1, "1 missing or in another version: no-such-package==1.0\n")
