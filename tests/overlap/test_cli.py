"""The command line as its user meets it, without starting an engine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shapes import R1_DISTILL_1_5B

from overlap import cli
from overlap.config.load import load_config
from overlap.core.errors import ConfigError, DataError, EngineError, StageError
from overlap.placement.devices import Devices
from overlap.record.checkpoint import RunState, save_state, writing
from overlap.record.ownership import write_config
from overlap.record.rundir import RunDir


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_policy import make_tiny_policy

    return make_tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")


@pytest.fixture
def refused(capsys: pytest.CaptureFixture) -> Callable[..., str]:
    """Runs a command that is bad input: what it says, on one line."""

    def command(*args: str) -> str:
        assert cli.main(list(args)) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return str(line)

    return command


@pytest.mark.promise("dry-run")
def test_a_dry_run_prints_config_and_plan_and_starts_nothing(done, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, text, err = done("train", "--dry-run", "data.task=toy:ToyTask", f"run.dir={out}")
    assert code == 0, err
    for wanted in (
        "\n  data.task=toy:ToyTask ",
        "(default recipes.code_rl.task:CodeTask)",
        "staleness",
        "8 to train on, 2 held out",
        "64 trajectories",
        "memory",
        "pass@4 on 2 held-out problems x 4",
    ):
        assert wanted in text
    assert "groups_per_step" not in text
    assert not out.exists()


def test_a_dry_run_with_all_fields_is_a_file_that_says_the_same(done, tmp_path: Path) -> None:
    asked = ["data.task=toy:ToyTask", 'rollout.stop=[x, "\'"]', f"run.dir={tmp_path / 'out'}"]
    code, text, err = done("train", "--dry-run", "--all", *asked)
    assert code == 0, err
    assert "  groups_per_step: 8\n" in text
    assert "\n# staleness " in text
    (file := tmp_path / "full.yaml").write_text(text)
    again = load_config(file)
    assert (again.data.task, again.rollout.stop) == ("toy:ToyTask", ("x", "'"))
    assert done("train", "--dry-run", "--all", "--config", str(file))[1].partition("\n#")[0] == text.partition("\n#")[0]
    assert done("train", "--all", *asked)[2].endswith("use it with --dry-run\n")


@pytest.mark.promise("bad-input")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["rollout", "--out", "no/such/folder/rows.jsonl"], "--out"),
        (["filter", "--out", "x.jsonl", "--low", "0.9", "--high", "0.1"], "low=0.9: use 0 <= low <= high <= 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args: list[str], message: str, refused) -> None:
    assert message in refused(*args)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "~nobody-at-all/x"])
@pytest.mark.parametrize(
    "words",
    [
        ["train", "model.policy=NAME"],
        ["train", "--config=NAME"],
        ["train", "--resume", "run.dir=NAME"],
        ["check-data", "NAME"],
        ["rollout", "--out=NAME"],
        ["export", "NAME"],
        ["ctl", "NAME", "status"],
    ],
)
def test_a_name_that_no_file_system_takes_is_refused_at_once(
    words: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(*(word.replace("NAME", name) for word in words))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("bad-input")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a.b", 1, "no"), 2),
        (EngineError("dead"), 1),
        (StageError("generate", "g0s0", EngineError("dead")), 1),
        (StageError("verify", "g0s0", DataError("rows.jsonl:3", "x", "has no tests")), 1),
        (KeyboardInterrupt(), 130),
        (KeyboardInterrupt(15), 143),
    ],
)
def test_each_kind_of_end_has_its_exit_code(error, code: int, monkeypatch, capsys: pytest.CaptureFixture) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("overlap.run.training.run_training", fail)
    assert cli.main(["train"]) == code
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def left_by(fields: dict[str, Any], folder: Path) -> None:
    """The configuration that a run leaves in its folder."""
    write_config(folder, load_config(fields).to_dict(), [{"step": 0}])


ORDERS = [
    ["--resume", "run.dir=runs/a", "learn.lr=1e-3", "run.steps=9"],
    ["run.dir=runs/a", "--config", "c.yaml", "learn.lr=1e-3", "--resume", "run.steps=9"],
    ["learn.lr=5", "--resume", "learn.lr=1e-3", "--config", "c.yaml", "run.steps=9", "run.dir=runs/a"],
]


@pytest.mark.parametrize("args", ORDERS)
def test_the_order_of_arguments_does_not_matter(args, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    left_by({"run.seed": 3, "run.dir": "elsewhere"}, tmp_path / "runs" / "a")
    (tmp_path / "c.yaml").write_text("run: {seed: 3}\n")
    taken = []
    monkeypatch.setattr("overlap.run.training.run_training", lambda cfg, **options: taken.append((cfg, options)))
    assert cli.main(["train", *args]) == 0
    ((cfg, options),) = taken
    assert (cfg.run.dir, cfg.run.steps, cfg.run.seed, cfg.learn.lr) == ("runs/a", 9, 3, 1e-3)
    assert options == {"resume": True, "with_changes": False, "rollouts": ""}


def test_a_resumed_run_goes_by_what_it_left_when_no_configuration_is_given(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "latest").mkdir(parents=True)
    left_by({"learn.lr": 3e-5, "run.dir": "runs/{time}"}, tmp_path / "runs" / "latest")
    taken = []
    monkeypatch.setattr("overlap.run.training.run_training", lambda cfg, **options: taken.append((cfg, options)))
    assert cli.main(["train", "--resume-with-changes"]) == 0
    ((cfg, options),) = taken
    assert (cfg.learn.lr, cfg.run.dir) == (3e-5, "runs/latest")
    assert options == {"resume": True, "with_changes": True, "rollouts": ""}


@pytest.mark.parametrize("template", ["", "file", "full", "link"])
def test_a_run_directory_that_may_not_be_is_refused_at_once_and_in_a_dry_run(
    template, tmp_path, monkeypatch, refused
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    (tmp_path / "link").symlink_to("full")
    before = sorted(tmp_path.rglob("*"))
    for flags in ([], ["--dry-run"]):
        assert "run.dir=" in refused("train", *flags, f"run.dir={template}")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.promise("users-files")
@pytest.mark.parametrize("command", [["rollout"], ["filter", "data.train=x.jsonl"]])
def test_a_file_of_the_users_is_not_written_over(command, tmp_path, refused) -> None:
    out = tmp_path / "notes.jsonl"
    out.write_text("mine\n")
    assert "exists already" in refused(*command, "--out", str(out))
    assert out.read_text() == "mine\n"


def test_a_gpu_that_is_not_there_is_refused_at_once(policy: Path, tmp_path: Path, refused) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    args = ["run.device=cuda", "data.task=toy:ToyTask", f"model.policy={policy}", f"run.dir={tmp_path / 'out'}"]
    assert "run.device='cuda'" in refused("train", *args)
    assert not (tmp_path / "out").exists()


def test_a_run_that_the_gpus_cannot_seat_is_refused_at_once_and_in_a_dry_run(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused
) -> None:
    monkeypatch.setattr("overlap.placement.seats.devices_here", lambda wanted: Devices.gpus(1))
    out = tmp_path / "out"
    args = ["learn.ranks=2", "data.task=toy:ToyTask", f"model.policy={policy}", f"run.dir={out}"]
    for flags in ([], ["--dry-run"]):
        assert "learn.ranks=2: each rank needs a GPU, and here are 1" in refused("train", *flags, *args)
    assert not out.exists()


@pytest.mark.promise("memory-plan")
def test_a_run_that_cannot_fit_is_refused_before_anything_is_made_with_what_would_make_it_fit(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("overlap.placement.fit.free_memory", lambda: 2**30)
    out = tmp_path / "out"
    args = ["run.device=cpu", "data.task=toy:ToyTask", f"model.policy={policy}", f"run.dir={out}"]
    for flags in ([], ["--dry-run"]):
        assert cli.main(["train", *flags, *args]) == 2
        said, err = capsys.readouterr()
        assert re.search(r"machine needs \d\.\d GiB during learning, 1\.0 free; most of it is for processes' own", err)
        assert len(err.splitlines()) == 1
        assert ("memory " in said) == bool(flags)
    assert not out.exists()


def test_an_engine_alone_that_cannot_fit_is_refused_before_it_starts(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused
) -> None:
    monkeypatch.setattr("overlap.placement.fit.free_memory", lambda: 2**30)
    monkeypatch.setattr("overlap.commands.standalone.open_components", None)  # nothing is opened
    out = tmp_path / "rows.jsonl"
    args = ["run.device=cpu", "data.task=toy:ToyTask", f"model.policy={policy}", "--out", str(out)]
    assert "1.0 free; most of it is for " in refused("rollout", *args)
    assert not out.exists()


def test_memory_of_other_hardware_is_planned_from_the_policys_configuration_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture, refused
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(R1_DISTILL_1_5B))
    asked = ["train", "--dry-run", "--devices", "1x80", f"model.policy={tmp_path}", "verify.workers=1000"]
    asked += ["rollout.max_staleness=1"]
    assert cli.main([*asked, "learn.advantage=gae", "learn.offload=sleep"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"policy        {tmp_path} (1,777 M parameters, bfloat16)\ncritic ")
    assert "sleep with the engine and are continued\ndevices " in said
    assert "\ndevices       1 vLLM engine of 1 GPU on GPU 0; 1 learner rank on GPU 0; colocated: engine and" in said
    assert "\nmemory        GPU 0 needs " in said
    assert "\nmemory        host needs " in said
    assert refused(*asked, "rollout.gpu_memory=0.9").endswith("): use a lower rollout.gpu_memory")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--devices", "1x80", "--dry-run", "--resume"], "without --resume or kept samples"),
        (["--devices", "80", "--dry-run"], "for instance 8x80"),
        (["--devices", "1x80", "--dry-run", "run.device=cpu"], "--devices=1x80 plans for GPUs"),
        (["--devices", "1x80", "--dry-run", "model.policy={empty}"], "has no config"),
        (["--devices", "1x80", "--dry-run", "rollout.tensor_parallel=2"], "rollout.tensor_parallel=2"),
    ],
)
def test_hardware_that_cannot_be_planned_for_is_one_line(
    args: list[str], message: str, tmp_path: Path, refused
) -> None:
    assert message in refused("train", *(arg.replace("{empty}", str(tmp_path)) for arg in args))


@pytest.mark.promise("dry-run")
def test_a_dry_run_refuses_what_going_on_would_refuse_and_touches_nothing(done, tmp_path: Path) -> None:
    run = tmp_path / "run"
    same = ["data.task=toy:ToyTask", f"run.dir={run}", "model.prompt_tokens=1700"]
    cfg = load_config(None, same)
    opened = RunDir.create(str(run), cfg.to_dict())
    state = RunState(2, 2, config=cfg.to_dict(), data="of other problems")
    with writing(opened.checkpoints, 2) as folder:
        save_state(folder, state)
    opened.close()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    lines = [done("train", "--resume", *flags, *same, "learn.lr=1e-3") for flags in ([], ["--dry-run"])]
    assert [code for code, _, _ in lines] == [2, 2]
    assert lines[0] == lines[1]
    for wanted in ("is not the same run", "learn.lr was 1e-06, is 0.001", "the problems of data.train was"):
        assert wanted in lines[1][2]
    code, out, err = done("train", "--resume-with-changes", "--dry-run", *same, "learn.lr=1e-3")
    assert (code, out) == (2, "")
    assert "has no learner state that can be read" in err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


GOOD = {
    "kind": "function",
    "fn_name": "inc",
    "tests": [{"input": "[1]", "output": "2"}, {"input": "[4]", "output": "5"}],
}
REFERENCE = "def inc(n):\n    return n + 1\n"


def problems(path: Path, good: int, *bad: dict[str, object]) -> Path:
    rows = [{**GOOD, "id": f"p{i}", "statement": f"Write inc {i}.", "reference": REFERENCE} for i in range(good)]
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows, *bad)))
    return path


@pytest.fixture
def done(policy: Path, capfd: pytest.CaptureFixture):
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def command(*args: str) -> tuple[int, str, str]:
        more = ("model.prompt_tokens=1700", f"model.policy={policy}") if args[0] == "train" else ()
        code = cli.main([*args, *more])
        return (code, *capfd.readouterr())

    return command


def test_the_plan_shows_rows_that_are_left_out(done, tmp_path: Path) -> None:
    data = problems(tmp_path / "rows.jsonl", 40, {**GOOD, "id": "x", "statement": "?", "kind": "quiz"})
    code, out, _ = done("train", "--dry-run", f"data.train={data}")
    assert code == 0
    assert re.search(rf"^left out +train: 1 malformed, first {data}:41: 'quiz': kind must be one of", out, re.MULTILINE)


def test_too_many_bad_rows_are_bad_input_with_the_counts(done, tmp_path: Path) -> None:
    data = problems(tmp_path / "rows.jsonl", 8, {"id": 1}, {**GOOD, "id": "x", "statement": "?", "tests": []})
    code, _, err = done("train", "--dry-run", f"data.train={data}")
    assert code == 2
    assert "data.train='2 of 10 rows': cannot be used, and 5% may be bad: 1 malformed, first" in err
    assert f"1 no tests, first {data}:10: 'x': has no tests" in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.promise("rows-left-out")
def test_check_data_judges_references_and_names_each_row_with_a_finding(done, tmp_path: Path) -> None:
    wrong = {**GOOD, "id": "wrong", "statement": "Write inc wrongly.", "reference": REFERENCE.replace("+", "-")}
    weak = {"id": "e", "kind": "stdio", "statement": "Print 1.", "tests": [{"input": "", "output": "1"}]}
    data = problems(tmp_path / "rows.jsonl", 40, wrong, weak, {"id": 1})
    code, _, err = done("check-data", str(data), "--out", str(tmp_path / "found.jsonl"))
    assert code == 1
    assert "41 of 42 problems bring a reference, 1 of those are rejected" in err
    assert f"1 WA, first {data}:41" in err
    assert f"1 accept the first example printed (a note), first {data}:42" in err
    assert f"left out: 1 malformed, first {data}:43" in err
    assert f"2 of 43 rows have a finding, 1 a note alone; every row is in {tmp_path / 'found.jsonl'}" in err
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    bad = {row["place"].rpartition(":")[2]: row["findings"] for row in found if row["findings"]}
    assert (len(found), bad) == (43, {"43": ["left out: malformed"], "41": ["its reference is rejected: WA"]})


@pytest.mark.parametrize(("rows", "code"), [(0, 0), (1, 1)])
def test_check_data_ends_with_1_for_findings_and_with_0_for_notes(
    rows: int, code: int, done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERLAP_CACHE", str(tmp_path / "cache"))
    noted = {"id": "e", "kind": "stdio", "statement": "Print 1.", "tests": [{"input": "", "output": "1"}]}
    data = problems(tmp_path / "rows.jsonl", 0, noted, *([{"id": 1}] * rows))
    found, _, err = done("check-data", str(data))
    assert found == code, err
    assert f"{rows} of {1 + rows} rows have a finding, 1 a note alone" in err


def test_check_data_takes_the_rows_as_they_stand_in_the_file(done, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("OVERLAP_CACHE", str(tmp_path / "cache"))
    noted = [
        {"id": f"e{n}", "kind": "stdio", "statement": f"Print {n}.", "tests": [{"input": "", "output": str(n)}]}
        for n in range(12)
    ]
    data, out = problems(tmp_path / "rows.jsonl", 0, *noted), tmp_path / "found.jsonl"
    _, _, err = done("check-data", str(data), "--limit", "3", "--out", str(out))
    assert f"3 accept the first example printed (a note), first {data}:1" in err
    places = [json.loads(line)["place"] for line in out.read_text().splitlines()]
    assert places == [f"{data}:{n}" for n in (1, 2, 3)]
