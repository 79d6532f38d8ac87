"""What leaves a device and comes back: bytes, views, and whose turn it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from overlap.core.errors import RunDirError
from overlap.learner.commands import Commands
from overlap.learner.kept_logprobs import KeptLogprobs
from overlap.learner.offload import HostBuffers, ModelMemory, Offloadable, Residency
from overlap.learner.zero.backend import ZeroModel

CPU = torch.device("cpu")


def used(*tensors):
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.mark.promise("offload")
def test_bytes_are_freed_while_a_part_is_away_and_every_view_has_its_own_again():
    flat = torch.arange(10, dtype=torch.float32)
    shards = [flat.narrow(0, 2, 3), flat.narrow(0, 5, 5).view(5, 1)]
    other = torch.full((3,), -1.5, dtype=torch.bfloat16)
    before = [t.clone() for t in (flat, *shards, other)]
    part = Offloadable(lambda: iter((*shards, other)), HostBuffers(), CPU)
    assert used(flat, other) == 46
    part.reload()  # what is there stays there
    for _ in range(2):
        part.offload()
        assert (used(flat, *shards, other), part.loaded) == (0, False)
    for _ in range(2):
        part.reload()
        assert (used(flat, *shards, other), part.loaded) == (46, True)
    assert all(torch.equal(a, b) for a, b in zip((flat, *shards, other), before, strict=True))
    shards[1].fill_(7.0)
    assert flat.tolist() == [0, 1, 2, 3, 4, 7, 7, 7, 7, 7]


@pytest.mark.parametrize(("device", "sleeps", "freed"), [("cuda", True, 1), ("cuda", False, 0), ("cpu", True, 0)])
def test_a_rank_that_offloads_nothing_gives_up_what_a_step_has_cached_before_the_engine_wakes(
    device, sleeps, freed, monkeypatch
):
    commands, emptied = Commands.__new__(Commands), []
    commands._trainer = SimpleNamespace(
        device=torch.device(device), step=lambda groups, alone: {"loss": 1.0}, kept=KeptLogprobs()
    )
    commands._spec = SimpleNamespace(
        placement=SimpleNamespace(sleeps=sleeps), cfg=SimpleNamespace(critic=SimpleNamespace(warmup_steps=0))
    )
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: emptied.append(True))
    assert commands.step([], 1) == ({"loss": 1.0}, {})
    assert len(emptied) == freed


def test_a_rank_that_ends_removes_torchs_counters_of_what_it_has_handed_over_and_no_others():
    """Torch names them by pid, and a container beside this one may have the same pids and the same /dev/shm."""
    code = (
        "import os, torch; from types import SimpleNamespace; from overlap.learner.commands import Commands\n"
        "storage = torch.UntypedStorage._new_using_filename_cpu(8)  # as its counters are made\n"
        "name = f'torch_{os.getpid()}_'; mine = {n for n in os.listdir('/dev/shm') if n.startswith(name)}\n"
        "other = f'/dev/shm/{name}0_0'; open(other, 'x').close()\n"
        "commands = Commands.__new__(Commands); commands._sender = SimpleNamespace(close=lambda: None)\n"
        "commands.close()\n"
        "left = {n for n in os.listdir('/dev/shm') if n.startswith(name)}; os.unlink(other)\n"
        "print(len(mine), left == {os.path.basename(other)})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "1 True\n", done.stderr


def test_what_is_away_can_be_read_on_the_host():
    weights, moment = torch.nn.Parameter(torch.arange(6.0)), torch.full((2, 3), 2.5, dtype=torch.bfloat16)
    part = Offloadable(lambda: iter((weights, moment, weights)), HostBuffers(), CPU)
    with part.read_on_host():
        assert weights.tolist() == [0, 1, 2, 3, 4, 5]
    part.offload()
    with part.read_on_host():
        assert weights.tolist() == [0, 1, 2, 3, 4, 5]
        assert moment.tolist() == [[2.5] * 3] * 2
    assert used(weights, moment) == 0
    part.reload()
    assert weights.tolist() == [0, 1, 2, 3, 4, 5]


class Trained(ZeroModel):
    """A model whose engine holds what one of DeepSpeed does, by the names that it has there."""

    def __init__(self):
        module = torch.nn.Linear(4, 4, bias=False)
        master = module.weight.detach().float().reshape(-1).clone().requires_grad_()
        inner = torch.optim.AdamW([master], lr=0.1)
        self.gradients = torch.ones(16)
        master.grad = self.gradients.narrow(0, 0, 16)
        inner.step()
        self.master, self.emptied = master, 0
        optimizer = SimpleNamespace(optimizer=inner, fp32_groups_gradients_flat=[self.gradients])
        super().__init__(SimpleNamespace(module=module, optimizer=optimizer), zero_stage=2)

    def free_gathered(self):
        self.emptied += 1

    def parts(self):
        state = [t for t in self.engine.optimizer.optimizer.state[self.master].values() if t.numel() > 1]
        return {
            "states": used(self.master, *state),
            "scratch": used(self.gradients),
            "parameters": used(self.module.weight),
        }


ALL = {"states": 192, "scratch": 64, "parameters": 64}
NOTHING = dict.fromkeys(ALL, 0)
PARAMETERS = NOTHING | {"parameters": 64}


def test_a_reference_policy_is_there_only_while_the_policy_learns():
    policy, reference = Trained(), torch.nn.Linear(4, 4, bias=False)
    weights = reference.weight.detach().clone()
    residency = Residency(CPU, ModelMemory(policy, HostBuffers(), CPU, [reference]))
    residency.sleep()
    for there in (residency.reading(), residency.all_readable()):  # as a checkpoint is written
        with there:
            assert (policy.parts()["parameters"], used(reference.weight)) == (64, 0)
    with residency.policy():
        assert (policy.parts(), used(reference.weight)) == (ALL, 64)
        assert torch.equal(reference.weight, weights)
    assert (policy.parts(), used(reference.weight)) == (PARAMETERS, 0)
    residency.sleep()
    residency.send()
    assert (policy.parts(), used(reference.weight)) == (PARAMETERS, 0)


@pytest.fixture
def both():
    policy, critic = Trained(), Trained()
    residency = Residency(CPU, *(ModelMemory(model, HostBuffers(), CPU) for model in (policy, critic)))
    return policy, critic, residency


def test_policy_and_critic_are_never_there_at_once_and_the_parameters_stay_for_the_engine(both):
    policy, critic, residency = both

    def held():
        return policy.parts(), critic.parts()

    residency.send()  # the first version, before any step
    assert held() == (PARAMETERS, NOTHING)
    with residency.critic():  # whatever nobody has put to sleep makes room
        assert held() == (NOTHING, ALL)
    assert held() == (NOTHING, NOTHING)
    with residency.policy():
        assert held() == (ALL, NOTHING)
    assert held() == (PARAMETERS, NOTHING)
    residency.send()
    assert held() == (PARAMETERS, NOTHING)
    residency.sleep()
    assert held() == (NOTHING, NOTHING)
    with residency.reading():
        assert held() == (PARAMETERS, NOTHING)
    assert held() == (NOTHING, NOTHING)


def test_states_that_are_away_are_saved_from_the_host_and_restored_on_the_device_one_after_the_other(both):
    policy, critic, residency = both
    residency.sleep()
    with residency.all_readable():
        assert policy.master.numel() == len(policy.master.tolist())
        assert used(policy.gradients) == 0
    assert policy.parts() == NOTHING
    with residency.restoring(critic=False):
        assert (policy.parts(), critic.parts()) == (ALL, NOTHING)
    with residency.restoring(critic=True):
        assert (policy.parts(), critic.parts()) == (NOTHING, ALL)
    with residency.policy():
        assert (policy.parts(), critic.parts()) == (ALL, NOTHING)


def out_of_memory(part):
    raise RuntimeError("CUDA out of memory")


@pytest.mark.parametrize("kind", ["policy", "state"])
def test_only_a_failure_to_write_lets_a_rank_go_on(both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind):
    """The others would wait for a rank that has no room for what it is to write."""
    commands = Commands.__new__(Commands)
    policy, _, residency = both
    commands._residency, commands._version = residency, 4
    commands._trainer = SimpleNamespace(device=CPU, model=policy, critic=None)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda count: None)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(commands, "_save_policy", full)
    monkeypatch.setattr(policy, "save", full)
    with pytest.raises(RunDirError, match="No space left"):
        commands.save(tmp_path / "x", kind)
    residency.sleep()
    monkeypatch.setattr(Offloadable, "reload", out_of_memory)
    with pytest.raises(RuntimeError, match="CUDA out of memory") as died:
        commands.save(tmp_path / "x", kind)
    assert not isinstance(died.value, RunDirError)
