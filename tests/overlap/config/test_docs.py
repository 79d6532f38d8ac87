"""What a person who does not know the fields finds out about them at a terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import pytest

from overlap import cli
from overlap.config.docs import changed_lines, field_lines, meaning_of, page
from overlap.config.fields import Config
from overlap.config.foreign import algorithms, foreign_names
from overlap.config.load import load_config
from overlap.config.rules import field_infos
from overlap.core.errors import ConfigError


def test_every_field_has_a_meaning_that_is_told():
    for section, kind in get_type_hints(Config).items():
        for name, info in field_infos(kind).items():
            head, *meaning = field_lines(f"{section}.{name}")
            assert head.startswith(f"{section}.{name}=")
            assert " ".join(line.strip() for line in meaning) == meaning_of(info) != ""


def test_a_default_is_told_as_it_is_written():
    told = field_lines()
    for line in ("learn.lr=1e-06", "learn.clip_low=null", "critic.warmup_steps=0", "rollout.stop=[]", "data.heldout="):
        assert line in told
        assert load_config(None, [line]) == Config()
    assert "learn.offload=none  (none | sleep | cpu)" in told


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ([], ["configuration: every field has its default (--all lists them)"]),
        (
            ["learn.lr=2e-5", "run.dir=runs/a"],
            ["  learn.lr=2e-05  (default 1e-06)", "  run.dir=runs/a  (default runs/latest)"],
        ),
        (["data.train=x.jsonl"], ['  data.train=x.jsonl  (default "")']),
        (["rollout.stop=['a', '\\n']"], ['  rollout.stop=["a", "\\\\n"]  (default [])']),
        (["rollout.engine.block_size=16"], ['  rollout.engine={"block_size": 16}  (default {})']),
        (["learn.clip_low=0.1", "run.samples=all"], ["  learn.clip_low=0.1  (default null)",
                                                       "  run.samples=all     (default some)"]),
    ],
)  # fmt: skip
def test_what_differs_from_the_defaults_is_listed_as_it_is_written(settings: list[str], lines: list[str]) -> None:
    cfg = load_config(None, settings)
    found = changed_lines(cfg)
    assert found[-len(lines) :] == lines
    assert len(found) == len(lines) + bool(settings)
    written = [line.strip().rpartition("  (default")[0].strip() for line in found[1:]]
    assert load_config(None, written) == cfg


def test_the_command_lists_a_section_and_refuses_what_is_none(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["fields", "critic"]) == 0
    assert all(line.startswith(("critic.", "    ")) for line in capsys.readouterr().out.splitlines())
    assert cli.main(["fields", "learn.advantag"]) == 2
    assert "did you mean learn.advantage?" in capsys.readouterr().err


@pytest.mark.promise("documents")
def test_the_page_of_all_fields_is_the_one_that_the_sources_make():
    written = Path(__file__, "../../../../docs/config.md").resolve().read_text(encoding="utf-8")
    assert written == page(), "write it again: python -m overlap.config.docs > docs/config.md"


@pytest.mark.promise("bad-input")
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learn.section=x", r"learn\.section='x': is not a field"),
        ("algorithm.adv_estimator=gae", r"here it is learn\.advantage"),
        ("actor_rollout_ref.rollout.n=8", r"here it is rollout\.samples_per_group"),
        ("model.path=x", r"here it is model\.policy"),
        ("learn.gamma=0.9", "is not discounted"),
        ("learn.temperature=1", r"did you mean rollout\.temperature\?"),
        ("actor.lr=1", r"did you mean learn\.lr\?"),
        ("critic.optim.lr=1", r"did you mean critic\.lr\?"),
        ("learn.advantage=gae critic.lambda=0.9", r"did you mean critic\.lambda_policy\?"),
        ("learn.foo=1", "`overlap fields learn` says what each is"),
        ("learn.advantage=PPO", r"here that is learn\.advantage=gae"),
        ("recipes/code_rl/configs/smoke.yaml", "with --config FILE"),
    ],
)
def test_who_comes_from_elsewhere_is_told_what_it_is_called_here(override: str, message: str):
    with pytest.raises(ConfigError, match=message):
        load_config(None, override.split())


def test_names_of_elsewhere_lead_to_fields_that_there_are():
    sections = "|".join(get_type_hints(Config))
    for name, here in foreign_names().items():
        named = re.findall(rf"\b(?:{sections})\.\w+", here)
        assert named or here.startswith(("none: ", "the flag --")), name
        for field in named:
            if not field.endswith(".jsonl"):
                assert field_lines(field), name
        if "=" in here and not here.startswith("none: "):
            load_config(None, [here.split()[0]])
    for algorithm in algorithms().values():
        load_config(None, f"learn.advantage={algorithm}".split())


def test_no_field_of_ours_is_taken_for_one_of_elsewhere():
    for kind in get_type_hints(Config).values():
        assert not field_infos(kind).keys() & (foreign_names().keys() - {"dtype"})
