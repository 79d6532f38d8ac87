"""What somebody new types: names of other trainers, wrong flags, wrong files. One line each, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from overlap import cli

FOREIGN_NAMES = """
    learning_rate=1e-6                                     learn.lr
    beta=0.04                                              learn.kl_coef
    epsilon=0.2                                            learn.clip_low and learn.clip_high
    epsilon_high=0.28                                      learn.clip_high
    num_generations=8                                      rollout.samples_per_group
    num_iterations=1                                       none: each sample is learned from once
    max_grad_norm=1.0                                      learn.grad_clip
    loss_type=dapo                                         learn.loss
    per_device_train_batch_size=8                          learn.micro_batch_tokens
    gradient_accumulation_steps=4                          none: it follows from learn.micro_batch_tokens
    report_to=wandb                                        run.trackers
    max_completion_length=512                              model.response_tokens
    max_prompt_length=512                                  model.prompt_tokens
    model_name_or_path=x                                   model.policy
    dataset_name=x                                         data.train
    output_dir=runs                                        run.dir
    max_steps=10                                           run.steps
    num_train_epochs=1                                     run.steps
    save_steps=10                                          run.save_every
    save_total_limit=2                                     run.keep_last
    eval_steps=10                                          run.eval_every
    logging_steps=1                                        none: metrics go to metrics.jsonl
    lr_scheduler_type=cosine                               learn.schedule
    warmup_ratio=0.1                                       learn.warmup_steps
    bf16=true                                              model.dtype=bfloat16
    scale_rewards=false                                    learn.normalize_advantages
    mask_truncated_completions=true                        learn.truncated=mask
    use_vllm=true                                          none: vLLM always samples
    vllm_gpu_memory_utilization=0.3                        rollout.gpu_memory
    vllm_importance_sampling_cap=2                         none: each learn.correction has its published bound
    use_peft=true                                          learn.lora_rank above 0
    top_p=0.95                                             none: samples to train on
    reward_funcs=x                                         data.task
    gradient_checkpointing=true                            learn.recompute
    resume_from_checkpoint=true                            the flag --resume
    algorithm.adv_estimator=grpo                           learn.advantage=group
    algorithm.kl_ctrl.kl_coef=0.001                        learn.kl_coef
    algorithm.norm_adv_by_std_in_grpo=false                learn.normalize_advantages
    algorithm.filter_groups.enable=true                    rollout.refill_groups
    data.train_files=x                                     data.train
    data.val_files=x                                       data.heldout
    data.train_batch_size=256                              rollout.groups_per_step
    data.max_response_length=512                           model.response_tokens
    data.shuffle=true                                      none: prompts are always shuffled
    actor_rollout_ref.model.path=x                         model.policy
    actor_rollout_ref.actor.optim.lr=1e-6                  learn.lr
    actor_rollout_ref.actor.ppo_mini_batch_size=64         learn.updates_per_step
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 learn.micro_batch_tokens
    actor_rollout_ref.actor.clip_ratio_high=0.28           learn.clip_high
    actor_rollout_ref.actor.kl_loss_coef=0.001             learn.kl_coef
    actor_rollout_ref.actor.entropy_coeff=0                learn.entropy_coef
    actor_rollout_ref.actor.fsdp_config.param_offload=true learn.offload=sleep
    actor_rollout_ref.actor.grad_clip=1.0                  learn.grad_clip
    actor_rollout_ref.rollout.n=8                          rollout.samples_per_group
    actor_rollout_ref.rollout.temperature=1.0              rollout.temperature
    actor_rollout_ref.rollout.val_kwargs.n=4               run.eval_samples
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6   rollout.gpu_memory
    actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype=fp8 rollout.engine, a mapping of vLLM's own names
    actor_rollout_ref.rollout.engine_kwargs.vllm.watermark=0.1 rollout.engine, a mapping of vLLM's own names
    actor_rollout_ref.rollout.engine_kwargs.vllm.max_num_seqs=8 rollout.max_sequences
    actor_rollout_ref.rollout.enforce_eager=true           rollout.engine, a mapping of vLLM's own names
    actor_rollout_ref.rollout.load_format=dummy            none: the learner sends the weights
    actor_rollout_ref.rollout.multi_turn.max_assistant_turns=4 episode.turns
    critic.optim.lr=1e-5                                   critic.lr
    trainer.total_epochs=15                                run.steps
    trainer.save_freq=20                                   run.save_every
    trainer.n_gpus_per_node=8                              learn.ranks
    trainer.logger=wandb                                   run.trackers
    trainer.experiment_name=x                              run.dir
    trainer.device=cuda                                    run.device
    trainer.val_before_train=true                          run.eval_samples
    reward_model.reward_manager=prime                      data.task
    reward_model.overlong_buffer.len=512                   learn.overlong_tokens
    custom_reward_function.path=x.py                       data.task
    pretrain=x                                             model.policy
    actor_learning_rate=1e-6                               learn.lr
    critic_learning_rate=9e-6                              critic.lr
    n_samples_per_prompt=8                                 rollout.samples_per_group
    rollout_batch_size=128                                 rollout.groups_per_step
    micro_train_batch_size=4                               learn.micro_batch_tokens
    generate_max_len=1024                                  model.response_tokens
    init_kl_coef=0.01                                      learn.kl_coef
    advantage_estimator=rloo                               learn.advantage=leave_one_out
    dynamic_filtering=true                                 rollout.refill_groups
    vllm_num_engines=2                                     rollout.replicas
    async_queue_size=1                                     rollout.max_staleness
    adam_offload=true                                      learn.offload=cpu
    freezing_actor_steps=10                                critic.warmup_steps
    use_wandb=x                                            run.trackers
    wandb_project=x                                        none: a tracker has it from its environment
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
    (["train", "--dry_run"], "there is no --dry_run; did you mean --dry-run?"),
    (["train", "--from-rollout"], "--from-rollouts"),
    (["train", "--no-such-flag"], "there is no --no-such-flag"),
    (["train", "-c", "x.yaml"], "there is no -c; did you mean --config?"),
    (["train", "--lr", "1e-5"], "--lr: did you mean learn.lr?"),
    (["train", "--run.steps=5"], "--run.steps: did you mean run.steps?"),
    (["train", "--config"], "--config: expected one argument"),
    (["train", "--config", "nowhere.yaml"], "cannot be read (No such file or directory); give a YAML file"),
    (["train", "--config", "."], "cannot be read (Is a directory)"),
    (["train", "smoke.yaml"], "a configuration is given with --config FILE"),
    (["train", "steps"], "write section.field=value, for instance learn.lr=2e-5"),
    (["train", "steps=5"], "did you mean run.steps?"),
    (["train", "stepps=5"], "did you mean run.steps?"),
    (["train", "lr=1e-5"], "did you mean learn.lr?"),
    (["train", "model=Qwen/Qwen2.5-0.5B"], "model is a section"),
    (["train", "learn.lr"], "write learn.lr=VALUE"),
    (["train", "learn.lr", "1e-5"], "override='learn.lr': write learn.lr=VALUE; override='1e-5': write"),
    (["train", "Learn.LR=1e-5"], "did you mean learn.lr?"),
    (["train", "learn:lr=1e-5"], "did you mean learn.lr?"),
    (["train", "config=smoke.yaml"], "here it is the flag --config"),
    (["train", "resume=true"], "here it is the flag --resume"),
    (["train", "learn.lr="], "use a finite number"),
    (["train", "learn.lr=fast"], "use a finite number"),
    (["train", "learn.lr=-1"], "use a number above 0"),
    (["train", "learn.lr=2024-13-45"], "is not a YAML value: a date, a number or what a tag names is none"),
    (["train", "learn.lr=1", "learn.lr.x=1"], "learn.lr=1: is no section: write learn.lr=VALUE"),
    (["train", "learn..lr=1"], "write section.field=value"),
    (["train", "run.steps=1e3"], "use a whole number"),
    (["train", "run.steps=0"], "use 1 or more"),
    (["train", "learn.advantage=GRPO"], "here that is learn.advantage=group"),
    (["train", "learn.loss=[ppo"], "is not a YAML value"),
    (["train", "data.options={a: 1, a: 2}"], "'a' stands twice in one mapping"),
    (["train", "run.device=gpu"], "use one of auto, cpu, cuda"),
    (["train", "rollout.samples_per_group=1"], "a group needs 2 or more samples"),
    (["train", "--devices", "8x80"], "use it with --dry-run"),
    (["train", "--resume", "run.dir=nowhere"], "run.dir='nowhere'"),
    (["train", "--from-rollouts", "nowhere"], "nowhere"),
    (["train", "--dry-run", "data.task=nowhere:Task"], "importing nowhere raised ModuleNotFoundError"),
    (["train", "--dry-run", "data.task=overlap.task"], 'must be "module:name"'),
    (["train", "--dry-run", "data.task=overlap.task:Tsk"], "did you mean Task?"),
    (["train", "--reward", "json:dumps", "data.options.stlye=trl"], "is no option of RewardTask; did you mean style?"),
    (["train", "--reward", "json:dumps", "--style", "TRL"], "did you mean trl?"),
    (["train", "run.trackers=[WandB]"], "did you mean wandb?"),
    (["rollout", "--limit", "0"], "use a whole number, 1 or more"),
    (["rollout", "--split", "test"], "'test' is none; use one of train, heldout"),
    (["rollout", "--out", "no/such/rows.jsonl"], "--out"),
    (["filter"], "the following arguments are required: --out"),
    (["filter", "--out", "x.jsonl"], "name the problem file"),
    (["filter", "--out", "x.jsonl", "--dry-run"], "no --dry-run here; `overlap train` has --dry-run; `overlap filter"),
    (["check-data"], "the following arguments are required: FILE"),
    (["check-data", "nowhere.jsonl"], "nowhere.jsonl"),
    (["export", "nowhere"], "nowhere"),
    (["ctl", "nowhere"], "the following arguments are required: COMMAND"),
    (["ctl", "nowhere", "paus"], "'paus' is none; did you mean pause?"),
    (["ctl", "nowhere", "pause"], "nowhere"),
    (["rollout", "--anwsers", "x"], "there is no --anwsers; did you mean --answers?"),
    (["fields", "learning_rate"], "here it is learn.lr"),
    (["train", "--all"], "it lists every field in a dry run: use it with --dry-run"),
    (["train", "--dry-run", "--all", "--devices", "8x80"], "and without --all"),
    (["init"], "the following arguments are required: DIR"),
    (["init", "a", "b"], "b is not known here"),
    (["init", "--force", "a"], "there is no --force"),
    (["init", ".."], "is not empty, and nothing is overwritten"),
    (["inti", "a"], "did you mean init?"),
    (["doctor", "--jsn"], "there is no --jsn; did you mean --json?"),
    (["doctor", "everything"], "write section.field=value"),
    (["doctor", "lr=1"], "did you mean learn.lr?"),
    (["doctor", "--config", "nowhere.yaml"], "cannot be read (No such file or directory)"),
    (["docter"], "did you mean doctor?"),
    (["show", "a", "--step", "last"], "argument --step: 'last': use a whole number"),
    (["show", "a", "--limit", "0"], "use a whole number, 1 or more"),
    (["view", "a", "--port", "70000"], "argument --port: '70000': use a whole number from 0 to 65535"),
    (["view", "a", "--port", "-1"], "argument --port: '-1': use a whole number from 0 to 65535"),
    (["filter", "--train", "x"], "argument --train: 'x': use a whole number"),
    (["fields", "learn.lrr"], "did you mean learn.lr?"),
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
            "'learn' stands twice in one mapping, in line 1 and line 3",
        ),
        ("learn:\n  lr: 1\n  lr: 2\n", "'lr' stands twice in one mapping, in line 2 and line 3"),
        ("learn: {lr: 1, lr: 2}\n", "'lr' stands twice in one mapping"),
        ("- a\n", "write sections"),
        ("learn: 3\n", "write its fields below it"),
        ("learn: [lr\n", "is not YAML: line 2, column 1: expected"),
        ("learn:\n  lr: 1\n loss: ppo\n", "is not YAML: line 3, column 2: expected"),
        ("learn: {lr: x, loss: 1}\nrun: {steps: 0}\n", "number; learn.loss=1: "),
        ("learn: {lr: x, loss: 1}\nrun: {steps: 0}\n", "; run.steps=0: use 1 or more"),
        ("extends: nowhere.yaml\n", "extends"),
        ("learn:\n\tlr: 1\n", "is not YAML"),
        ("learn: {lr: 2024-13-45}\n", "is not YAML: a date, a number or what a tag names is none: month must be"),
        ("learn: {lr: !!bool maybe}\n", "is not YAML: a date, a number or what a tag names is none"),
        ("learn: {lr: !!timestamp now}\n", "is not YAML: a date, a number or what a tag names is none"),
        (f"learn: {{lr: {'9' * 400}}}\n", ": use a finite number"),
        (f"learn: {{loss: {'x' * 9000}}}\n", "…: use one of ppo"),
        (f"{'x' * 900}: 1\n", "…=1: is not a field"),
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
