"""What somebody new types: names of other trainers, wrong flags, wrong files. One line each, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from overlap import cli

FOREIGN_NAMES = """
    learning_rate=1e-6                                     learn.lr
    epsilon=0.2                                            learn.clip_low and learn.clip_high
    num_generations=8                                      rollout.samples_per_group
    num_iterations=1                                       none: each sample is learned from once
    loss_type=dapo                                         learn.loss
    dataset_name=x                                         data.train
    bf16=true                                              model.dtype=bfloat16
    use_vllm=true                                          none: vLLM always samples
    top_p=0.95                                             none: samples to train on
    resume_from_checkpoint=true                            the flag --resume
    algorithm.adv_estimator=grpo                           learn.advantage=group
    data.train_files=x                                     data.train
    actor_rollout_ref.actor.optim.lr=1e-6                  learn.lr
    actor_rollout_ref.rollout.n=8                          rollout.samples_per_group
    actor_rollout_ref.rollout.val_kwargs.n=4               run.eval_samples
    actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype=fp8 rollout.engine, a mapping of vLLM's own names
    actor_rollout_ref.rollout.engine_kwargs.vllm.max_num_seqs=8 rollout.max_sequences
    actor_rollout_ref.rollout.load_format=dummy            none: the learner sends the weights
    critic.optim.lr=1e-5                                   critic.lr
    trainer.save_freq=20                                   run.save_every
    reward_model.overlong_buffer.len=512                   learn.overlong_tokens
    custom_reward_function.path=x.py                       data.task
    actor_learning_rate=1e-6                               learn.lr
    critic_learning_rate=9e-6                              critic.lr
    advantage_estimator=rloo                               learn.advantage=leave_one_out
    async_queue_size=1                                     rollout.max_staleness
    freezing_actor_steps=10                                critic.warmup_steps
    push_to_hub=true                                       none: `overlap export RUN --push owner/name`
"""
NAMES = [tuple(line.split(maxsplit=1)) for line in FOREIGN_NAMES.strip().splitlines()]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command that is bad input, in an empty folder: what it says, on one line. It leaves nothing there."""
    (folder := tmp_path / "here").mkdir()
    monkeypatch.chdir(folder)

    def command(*words: str) -> str:
        try:
            code: object = cli.main(list(words))
        except SystemExit as ended:  # argparse's way
            code = ended.code
        said = capsys.readouterr()
        assert (code, said.out) == (2, ""), said.err
        (line,) = said.err.splitlines()
        assert line.startswith("overlap: bad input: ")
        assert list(folder.iterdir()) == []
        return str(line)

    return command


def _tree(name: str, value: str) -> dict[str, object]:
    tree: object = value
    for part in reversed(name.split(".")):
        tree = {part: tree}
    assert isinstance(tree, dict)
    return tree


@pytest.mark.promise("bad-input")
@pytest.mark.parametrize(("given", "here"), NAMES)
def test_a_name_of_another_trainer_is_told_what_it_is_here(given: str, here: str, tmp_path: Path, refused) -> None:
    name, _, value = given.partition("=")
    (file := tmp_path / "theirs.yaml").write_text(yaml.safe_dump(_tree(name, value)))
    ways = [["train", given], ["train", "--config", str(file)], ["train", f"+{given}"], ["train", f"--{given}"]]
    ways += [["train", f"--{name.replace('_', '-')}", value]]
    ways += [["train", f"learn.{name}={value}"]] if "." not in name else []
    told = f"there is {here.replace(':', ' here:')}" if here.startswith("none:") else f"here it is {here}"
    for way in ways:
        said = refused(*way)
        assert told in said or f"did you mean {here}?" in said, way


def test_all_wrong_names_of_a_file_and_of_the_command_line_are_told_at_once(tmp_path: Path, refused) -> None:
    (file := tmp_path / "trl.yaml").write_text(
        "learning_rate: 1e-6\nlearn: {beta: 0.04, lrr: 1}\ntrainer: {save_freq: 5, nnodes: 1}\nrun: {steps: 3}\n"
    )
    said = refused("train", "--config", str(file), "num_generations=8", "learn.lora_target=all", "steps")
    for told in (
        "override='steps': write section.field=value",
        "learn.lora_target='all': is not a field; there is none here: adapters are on all linear layers",
        "learning_rate='1e-6': is not a field; here it is learn.lr",
        "learn.beta=0.04: is not a field; here it is learn.kl_coef",
        "learn.lrr=1: is not a field; did you mean learn.lr?",
        "trainer.save_freq=5: is not a field; here it is run.save_every",
        "trainer.nnodes=1: is not a field; here it is learn.ranks, and cluster.address",
        "num_generations=8: is not a field; here it is rollout.samples_per_group",
    ):
        assert told in said


def test_flags_of_another_trainer_are_told_at_once(refused) -> None:
    words = ["--learning_rate", "1e-6", "--beta=0.04", "--advantage-estimator", "grpo", "--lora_alpha", "32"]
    said = refused("train", *words, "run.steps=3")
    for told in (
        "--learning_rate: here it is learn.lr;",
        "--beta: here it is learn.kl_coef;",
        "--lora_alpha: there is none here: it is twice learn.lora_rank;",
        "--advantage-estimator: here it is learn.advantage=group;",
        "fields are written without dashes: section.field=value",
    ):
        assert told in said


MISTAKES: list[tuple[list[str], str]] = [
    ([], "the following arguments are required: command"),
    (["trian"], "'trian' is none; did you mean train?"),
    (["evaluate"], "use one of train, rollout, filter, check-data"),
    (["train", "--dryrun"], "there is no --dryrun; did you mean --dry-run?"),
    (["train", "--from-rollout"], "--from-rollouts"),
    (["train", "-c", "x.yaml"], "there is no -c; did you mean --config?"),
    (["train", "--lr", "1e-5"], "--lr: did you mean learn.lr?"),
    (["train", "--run.steps=5"], "--run.steps: did you mean run.steps?"),
    (["train", "--config"], "--config: expected one argument"),
    (["train", "--config", "nowhere.yaml"], "cannot be read (No such file or directory); give a YAML file"),
    (["train", "smoke.yaml"], "a configuration is given with --config FILE"),
    (["train", "steps"], "write section.field=value, for instance learn.lr=2e-5"),
    (["train", "stepps=5"], "did you mean run.steps?"),
    (["train", "lr=1e-5"], "did you mean learn.lr?"),
    (["train", "model=Qwen/Qwen2.5-0.5B"], "model is a section"),
    (["train", "learn.lr"], "write learn.lr=VALUE"),
    (["train", "learn.lr", "1e-5"], "override='learn.lr': write learn.lr=VALUE; override='1e-5': write"),
    (["train", "Learn.LR=1e-5"], "did you mean learn.lr?"),
    (["train", "learn:lr=1e-5"], "did you mean learn.lr?"),
    (["train", "resume=true"], "here it is the flag --resume"),
    (["train", "learn.lr=fast"], "use a finite number"),
    (["train", "learn.lr=-1"], "use a number above 0"),
    (["train", "learn.lr=2024-13-45"], "is not a YAML value: a date, a number or what a tag names is none"),
    (["train", "learn.lr=1", "learn.lr.x=1"], "learn.lr=1: is no section: write learn.lr=VALUE"),
    (["train", "learn.advantage=GRPO"], "here that is learn.advantage=group"),
    (["train", "data.options={a: 1, a: 2}"], "'a' is twice in one mapping"),
    (["train", "run.device=gpu"], "use one of auto, cpu, cuda"),
    (["train", "--devices", "8x80"], "use it with --dry-run"),
    (["train", "--resume", "run.dir=nowhere"], "run.dir='nowhere'"),
    (["train", "--from-rollouts", "nowhere"], "nowhere"),
    (["train", "--dry-run", "data.task=nowhere:Task"], "importing nowhere raised ModuleNotFoundError"),
    (["train", "--dry-run", "data.task=overlap.task"], 'must be "module:name"'),
    (["train", "--reward", "json:dumps", "data.options.stlye=trl"], "is no option of RewardTask; did you mean style?"),
    (["train", "--reward", "json:dumps", "--style", "TRL"], "did you mean trl?"),
    (["train", "run.trackers=[WandB]"], "did you mean wandb?"),
    (["rollout", "--limit", "0"], "use a whole number, 1 or more"),
    (["rollout", "--split", "test"], "'test' is none; use one of train, heldout"),
    (["filter", "--out", "x.jsonl"], "name the problem file"),
    (["filter", "--out", "x.jsonl", "--dry-run"], "no --dry-run here; `overlap train` has --dry-run; `overlap filter"),
    (["check-data", "nowhere.jsonl"], "nowhere.jsonl"),
    (["ctl", "nowhere", "paus"], "'paus' is none; did you mean pause?"),
    (["rollout", "--anwsers", "x"], "there is no --anwsers; did you mean --answers?"),
    (["fields", "learning_rate"], "here it is learn.lr"),
    (["train", "--all"], "it lists every field in a dry run: use it with --dry-run"),
    (["train", "--dry-run", "--all", "--devices", "8x80"], "and without --all"),
    (["init"], "the following arguments are required: DIR"),
    (["init", "a", "b"], "b is not known here"),
    (["init", ".."], "is not empty, and nothing is overwritten"),
    (["doctor", "everything"], "write section.field=value"),
    (["show", "a", "--step", "last"], "argument --step: 'last': use a whole number"),
    (["view", "a", "--port", "70000"], "argument --port: '70000': use a whole number from 0 to 65535"),
]


@pytest.mark.promise("bad-input")
@pytest.mark.parametrize(("words", "told"), MISTAKES, ids=[" ".join(words) or "nothing" for words, _ in MISTAKES])
def test_a_mistake_is_one_line_with_the_way_out(words: list[str], told: str, refused) -> None:
    assert told in refused(*words)


@pytest.mark.parametrize(
    ("command", "rest"),
    [("show", []), ("view", []), ("report", []), ("export", []), ("ctl", ["status"])],
)
def test_a_run_that_is_misspelt_or_named_without_its_folder_is_told_with_the_one_that_is_meant(
    command: str, rest: list[str], refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "config.yaml").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    for name in ("runs/frist", "first"):
        told = refused(command, name, *rest)
        assert "did you mean" in told, name
        assert "runs/first?" in told, name


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "learn: {lr: 1}\nrun: {steps: 3}\nlearn: {lr: 2}\n",
            "'learn' is twice in one mapping, in line 1 and line 3",
        ),
        ("learn:\n  lr: 1\n  lr: 2\n", "'lr' is twice in one mapping, in line 2 and line 3"),
        ("- a\n", "write sections"),
        ("learn: [lr\n", "is not YAML (line 2, column 1: expected"),
        ("learn:\n  lr: 1\n loss: ppo\n", "is not YAML (line 3, column 2: expected"),
        ("learn: {lr: x, loss: 1}\nrun: {steps: 0}\n", "; run.steps=0: use 1 or more"),
        ("learn: {lr: 2024-13-45}\n", "is not YAML (a date, a number or what a tag names is none: month must be"),
        (f"learn: {{lr: {'9' * 400}}}\n", ": use a finite number"),
        (f"learn: {{loss: {'x' * 9000}}}\n", "…: use one of ppo"),
        ('"\\e[2J\\ud800": 1\n', r"\x1b[2J\ud800=1: is not a field"),
        ("extends: c.yaml\n", "bad input: extends='"),
    ],
    ids=lambda text: text[:30],
)
def test_a_wrong_file_is_one_line_with_the_way_out(text: str, told: str, tmp_path: Path, refused) -> None:
    (file := tmp_path / "c.yaml").write_text(text)
    assert told in refused("train", "--config", str(file))


def test_a_merged_key_of_yaml_may_be_overridden(tmp_path: Path) -> None:
    from overlap.config.load import load_config

    (file := tmp_path / "c.yaml").write_text("learn: &a {lr: 1e-5}\ncritic: {<<: *a}\n")
    assert load_config(file, ["learn.advantage=gae"]).critic.lr == 1e-5
