"""A saved state becomes a checkpoint that transformers loads, without the engine that wrote it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hub_stub import Hub
from made_run import made_run
from places import ROOT

import overlap
from overlap import cli
from overlap.config.load import load_config
from overlap.record.checkpoint import LEARNER, RunState, save_state, writing

pytestmark = pytest.mark.timeout(600)  # each command imports torch and transformers, at times on a busy machine


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with states after steps 2 and 4, as DeepSpeed writes them up to ZeRO 2; its policy beside it."""
    import torch
    from tiny_policy import make_tiny_policy
    from transformers import AutoModelForCausalLM

    root = tmp_path_factory.mktemp("trained")
    policy = make_tiny_policy(root / "tiny")
    cfg = load_config(None, [f"model.policy={policy}", "model.dtype=float32", "run.save_every=2"]).to_dict()
    cfg["verify"]["workers"] = 4096  # a machine with more cores than this one
    for step in (2, 4):
        model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(step)
        tensors = {f"policy.{name}": tensor for name, tensor in model.state_dict().items()}
        tensors["head.weight"] = model.get_output_embeddings().weight
        with writing(root / "run" / "checkpoints", step) as folder:
            files = folder / LEARNER / "deepspeed"
            files.mkdir(parents=True)
            torch.save({"module": tensors}, files / "mp_rank_00_model_states.pt")
            told = {"version": step - 1, "updates": step, "ranks": 1, "zero_stage": 2, "dtype": "float32"}
            (folder / LEARNER / "learner.json").write_text(json.dumps(told))
            save_state(folder, RunState(step, step - 1, config=cfg))
    return root


def moved(checkpoint: Path, policy: Path) -> float:
    """How far the weights of ``checkpoint`` are from those of ``policy``, when both are the same everywhere."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoTokenizer.from_pretrained(checkpoint)("say 1")["input_ids"]
    before = dict(AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).named_parameters())
    after = dict(AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).named_parameters())
    assert before.keys() == after.keys()
    distances = {round((after[name] - before[name]).detach().mean().item(), 3) for name in before}
    assert len(distances) == 1
    return distances.pop()


@pytest.mark.promise("export")
def test_the_newest_state_is_exported_beside_its_run(trained: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["export", str(trained / "run")]) == 0
    made = trained / "run" / "policy-step-000004"
    assert capsys.readouterr().out == f"{made}: the policy after step 4 (version 3)\n"
    assert moved(made, trained / "tiny") == 4
    assert not list((trained / "run").glob(".*"))


def test_python_exports_what_the_command_does_and_leaves_the_output_alone(trained: Path, tmp_path: Path, capfd) -> None:
    from transformers.utils.logging import is_progress_bar_enabled

    made = overlap.export(trained / "run", step=2, out=str(tmp_path / "ä b"))
    assert made == (tmp_path / "ä b", 2, 1, "")
    assert capfd.readouterr() == ("", "")
    assert is_progress_bar_enabled()
    assert moved(made.path, trained / "tiny") == 2


def refused(args: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    capsys.readouterr()  # bars of what the test itself has loaded
    assert cli.main(["export", *args]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


def test_what_cannot_be_exported_is_one_line_with_the_way_out(trained: Path, tmp_path: Path, capsys) -> None:
    run = str(trained / "run")
    refused([run, "--step", "3"], "there are those of step 2, 4", capsys)
    refused([str(tmp_path / "none")], "checkpoints is missing: name the directory", capsys)
    refused([str(tmp_path)], "checkpoints is missing: name the directory", capsys)
    refused(["~nobody-has-this-name/x"], "is no usable path", capsys)
    refused([run, "--out", str(tmp_path)], "exists already", capsys)
    refused([run, "--out", str(tmp_path / "no" / "where")], "or does not exist", capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("export")
@pytest.mark.parametrize("how", ["torn", "gone", "other policy", "not json"])
def test_a_state_that_is_damaged_is_named_and_nothing_is_left(trained: Path, tmp_path: Path, how: str, capsys) -> None:
    shutil.copytree(trained / "run", tmp_path / "run")
    state = tmp_path / "run" / "checkpoints" / "step-000004" / LEARNER
    file = state / "deepspeed" / "mp_rank_00_model_states.pt"
    if how == "torn":
        file.write_bytes(file.read_bytes()[:5000])
    elif how == "gone":
        file.unlink()
    elif how == "not json":
        (state / "learner.json").write_text("{")
    else:
        import torch

        torch.save({"module": {"policy.unknown.weight": torch.zeros(2)}}, file)
    refused([str(tmp_path / "run"), "--out", str(tmp_path / "out")], "checkpoint=", capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


# --- to the hub -------------------------------------------------------------------------------------------------


def pushed(trained: Path, out: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """``overlap export --push`` in a process of its own: the hub's client reads its address when it is imported."""
    here = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    here |= {"HF_HOME": str(out.parent / "hf"), **environment}
    command = [sys.executable, "-m", "overlap.cli", "export", str(trained / "run"), "--out", str(out), *words]
    return subprocess.run(command, env=here, cwd=ROOT, capture_output=True, text=True, timeout=110)


PNG = b"\x89PNG of the run"


@pytest.fixture
def told_run(trained: Path, tmp_path: Path) -> Path:
    """The trained run with the files of one that has ended."""
    made = made_run(tmp_path / "told" / "run", steps=4, groups=2, samples=2, eval_every=2)
    shutil.copytree(trained / "run" / "checkpoints", made / "checkpoints")
    (made / "picture.png").write_bytes(PNG)
    return made.parent


@pytest.mark.promise("export")
def test_a_policy_goes_to_the_hub_with_its_card(told_run: Path, tmp_path: Path) -> None:
    with Hub() as hub:
        done = pushed(told_run, tmp_path / "out", hub.environment(), "--push", "owner/adder", "--private")
    assert done.returncode == 0, (done.stderr, hub.requests)
    assert done.stderr == ""
    assert f"{hub.url}/owner/adder: uploaded, with its model card" in done.stdout
    assert hub.private == {"owner/adder": True}
    files = hub.files["owner/adder"]
    assert (
        set(files) == {path.name for path in (tmp_path / "out").iterdir()} >= {"README.md", "curve.png", "config.json"}
    )
    assert files["model.safetensors"] == (tmp_path / "out" / "model.safetensors").read_bytes()
    card = files["README.md"].decode()
    head = yaml.safe_load(card.split("---")[1])
    assert head["library_name"] == "transformers"
    assert "| 4 (this policy) | pass@1 |" in card
    assert "![Rewards, lengths and times of the run](curve.png)" in card
    assert 'AutoTokenizer.from_pretrained("owner/adder")' in card
    assert files["curve.png"] == PNG
    assert str(tmp_path) not in card


@pytest.mark.parametrize(
    ("push", "environment", "fails", "says"),
    [
        ("adder", {}, {}, "use the id of a model repository, as in owner/name"),
        ("owner/adder", {"HF_TOKEN": ""}, {}, "log in (`hf auth login`, or HF_TOKEN)"),
        ("owner/adder", {"HF_ENDPOINT": "http://127.0.0.1:9"}, {}, "http://127.0.0.1:9 refuses it ("),
        ("owner/adder", {}, {"create": 403}, "as one who may write there"),
    ],
)
def test_what_cannot_be_pushed_is_refused_before_anything_is_exported(
    told_run: Path, tmp_path: Path, push: str, environment: dict[str, str], fails: dict[str, int], says: str
) -> None:
    with Hub(**fails) as hub:
        done = pushed(told_run, tmp_path / "out", hub.environment() | environment, "--push", push)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert f"--push='{push}': " in line
    assert says in line
    assert not (tmp_path / "out").exists()


def test_an_upload_that_fails_leaves_the_folder_and_says_how_to_go_on(told_run: Path, tmp_path: Path) -> None:
    with Hub(commit=422) as hub:
        done = pushed(told_run, tmp_path / "out", hub.environment(), "--push", "owner/adder")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"`hf upload owner/adder {tmp_path / 'out'}` tries again" in line
    assert (tmp_path / "out" / "model.safetensors").is_file()
