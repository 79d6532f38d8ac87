"""What is refused before anything is started."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_parts import fake_prompts

from overlap.config.load import load_config
from overlap.core.errors import ConfigError
from overlap.run.run_inputs import prepare
from overlap.task import Task


class TrainOnly(Task):
    def prompts(self, tokenizer, split):
        return fake_prompts(8) if split == "train" else []

    def reward(self, prompt, answer, judgement):
        return 1.0


@pytest.fixture(autouse=True)
def no_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlap.policy.resolve.resolve_policy", lambda name: tmp_path)
    monkeypatch.setattr("overlap.run.run_inputs.load_tokenizer", lambda policy: None)


def test_evaluations_during_a_run_need_something_to_evaluate_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run.eval_every=5: there are no held-out prompts: name .* data.heldout"):
        prepare(load_config(None, ["run.eval_every=5"]), TrainOnly(), tmp_path)


def test_without_held_out_prompts_a_run_is_not_evaluated(tmp_path: Path) -> None:
    assert prepare(load_config(), TrainOnly(), tmp_path).heldout == ()


class Tokenizer:
    def __init__(self, *tokens: str) -> None:
        self._tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self._tokens)}


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tokenizer]:
    """By name, the tokenizers of checkpoints."""
    known = {"policy": Tokenizer("a", "b"), "small": Tokenizer("a", "b"), "other": Tokenizer("b", "a")}

    def resolve(name: str) -> Path:
        if name not in known:
            raise ConfigError("model.policy", name, "no such directory")
        return tmp_path / name

    monkeypatch.setattr("overlap.policy.resolve.resolve_policy", resolve)
    monkeypatch.setattr("overlap.run.run_inputs.load_tokenizer", lambda policy: known[policy.name])
    return known


def test_a_critic_starts_from_the_policy_or_from_another_checkpoint(checkpoints: object, tmp_path: Path) -> None:
    def critic(*overrides: str) -> Path | None:
        cfg = load_config(None, ["model.policy=policy", *overrides])
        return prepare(cfg, TrainOnly(), tmp_path).critic

    assert critic() is None
    assert critic("learn.advantage=gae") == tmp_path / "policy"
    assert critic("learn.advantage=gae", "critic.policy=small") == tmp_path / "small"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other", r"^critic\.policy='other': its tokenizer is not that of model\.policy=policy: use a checkpoint of"),
        ("missing", r"^critic\.policy='missing': no such directory"),
    ],
)
def test_a_critic_that_cannot_read_the_policy_is_refused(
    checkpoints: object, tmp_path: Path, name: str, message: str
) -> None:
    cfg = load_config(None, ["model.policy=policy", "learn.advantage=gae", f"critic.policy={name}"])
    with pytest.raises(ConfigError, match=message):
        prepare(cfg, TrainOnly(), tmp_path)


def test_an_agent_program_needs_a_task_that_provides_for_it(tmp_path: Path) -> None:
    class Bare:
        packages = ()
        prompts, reward = TrainOnly.prompts, TrainOnly.reward
        program = probes = None

    cfg = load_config(None, ["episode.command=echo"])
    with pytest.raises(ConfigError, match=r"episode.command=.echo.: .*Bare has no files for it; derive the task from"):
        prepare(cfg, Bare(), tmp_path)
    assert prepare(cfg, TrainOnly(), tmp_path).train


class Episodic(TrainOnly):
    async def rollout(self, prompt, chat, sandbox):
        return ""


class Sync(TrainOnly):
    def rollout(self, prompt, chat, sandbox):
        return ""


class Short(TrainOnly):
    async def rollout(self, prompt, chat):
        return ""


class Yielding(TrainOnly):
    async def rollout(self, prompt, chat, sandbox):
        yield ""


class Wrapped(TrainOnly):
    @functools.wraps(Episodic.rollout)
    def rollout(self, *args):
        return Episodic.rollout(self, *args)


class Called:
    async def __call__(self, prompt, chat, sandbox):
        return ""


class Object(TrainOnly):
    rollout = Called()


def test_variables_of_the_chat_template_hold_wherever_it_renders(tmp_path: Path, monkeypatch) -> None:
    def render(messages, **given):
        return given

    made = SimpleNamespace(apply_chat_template=render)
    monkeypatch.setattr("overlap.run.run_inputs.load_tokenizer", lambda policy: made)
    cfg = load_config(None, ["model.chat_template_kwargs.enable_thinking=false"])
    tokenizer = prepare(cfg, TrainOnly(), tmp_path).tokenizer
    assert tokenizer.apply_chat_template([], tokenize=False) == {"enable_thinking": False, "tokenize": False}


@pytest.mark.parametrize("task", [Episodic, Wrapped, Object])
def test_a_rollout_is_a_coroutine_of_three(task: type[Task], tmp_path: Path) -> None:
    assert prepare(load_config(None, ["episode.turns=3"]), task(), tmp_path).train


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (Sync, r"data.task='Sync.rollout': it is not async \(.*test_run_inputs.py:\d+\): write `async def rollout"),
        (Yielding, r"data.task='Yielding.rollout': it yields \(.*\): write `async def"),
        (
            Short,
            r"data.task='Short.rollout': cannot be called with prompt, chat, sandbox: too many .*; write `async def",
        ),
    ],
)
def test_a_rollout_that_is_none_is_refused_before_anything_starts(task: type[Task], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{says}"):
        prepare(load_config(), task(), tmp_path)
    assert prepare(load_config(None, ["episode.command=echo"]), task(), tmp_path).train, "it is not asked"


@pytest.mark.parametrize(
    "setting",
    ["episode.turns=3", "episode.timeout_s=60", "episode.tool_parser=hermes", "episode.reasoning_parser=qwen3",
     "episode.tokens=512"],
)  # fmt: skip
def test_what_only_episodes_have_is_refused_where_there_are_none(setting: str, tmp_path: Path) -> None:
    cfg, field = load_config(None, [setting]), setting.partition("=")[0]
    with pytest.raises(ConfigError, match=f"^{field}=.*: TrainOnly has no rollout of several turns, .* leave it out"):
        prepare(cfg, TrainOnly(), tmp_path)
    assert prepare(cfg, Episodic(), tmp_path).train


def test_an_episode_has_less_time_than_what_hangs(tmp_path: Path) -> None:
    cfg = load_config(None, ["episode.timeout_s=1800"])
    with pytest.raises(ConfigError, match=r"^episode.timeout_s=1800.0: .* again after run.stall_s=1800: use less"):
        prepare(cfg, Episodic(), tmp_path)
    assert prepare(load_config(None, ["run.stall_s=60"]), TrainOnly(), tmp_path).train


@pytest.mark.parametrize(("task", "settings"), [(Episodic, []), (TrainOnly, ["episode.command=echo"])])
def test_no_length_of_one_response_is_held_against_an_episode_of_many(
    task: type[Task], settings: list[str], tmp_path: Path
) -> None:
    cfg = load_config(None, ["learn.overlong_tokens=16", *settings])
    with pytest.raises(ConfigError, match=r"^learn.overlong_tokens=16: rollouts are episodes \(.*use 0$"):
        prepare(cfg, task(), tmp_path)
    assert prepare(load_config(None, ["learn.overlong_tokens=16"]), TrainOnly(), tmp_path).train


def test_an_episode_has_room_for_one_response() -> None:
    with pytest.raises(ConfigError, match=r"^episode.tokens=100: one response may have 256: use that or more"):
        load_config(None, ["episode.tokens=100"])


def test_a_command_is_read_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^episode.command='no-such-agent': there is no program"):
        prepare(load_config(None, ["episode.command=no-such-agent"]), TrainOnly(), tmp_path)


def test_an_engine_option_is_looked_up_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^rollout.engine.seed=3: use run.seed"):
        prepare(load_config(None, ["rollout.engine.seed=3"]), TrainOnly(), tmp_path)


@pytest.mark.parametrize("field", ["loss", "advantage", "correction"])
def test_a_function_of_the_user_is_imported_before_anything_starts(tmp_path: Path, field: str) -> None:
    with pytest.raises(ConfigError, match=rf"^learn\.{field}='nowhere:mine': importing nowhere raised"):
        prepare(load_config(None, [f"learn.{field}=nowhere:mine"]), TrainOnly(), tmp_path)
