"""problem.yaml: what is read, and what is refused by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from package_files import LEGACY, NEW, write_package

from sandbox.core.nouns import MIB
from sandbox.errors import InvalidProblem, ToolchainMissing
from sandbox.packages.settings import Settings, read_settings


def settings(root: Path, text: str, **files: str) -> Settings:
    return read_settings(write_package(root, {"problem.yaml": text, **files}))


def test_a_legacy_package_without_a_word_has_the_formats_defaults(tmp_path: Path) -> None:
    found = settings(tmp_path, LEGACY)
    assert (found.version, found.types, found.custom_validator) == ("legacy", {"pass-fail"}, False)
    assert (found.timing.fixed_s, found.timing.ac_to_limit, found.timing.limit_to_tle) == (None, 5, 2)
    assert (found.bounds.memory_bytes, found.bounds.output_bytes, found.bounds.passes) == (2048 * MIB, 8 * MIB, 1)


def test_legacy_keys_are_read(tmp_path: Path) -> None:
    text = """
    type: scoring
    validation: custom score interactive
    validator_flags: case_sensitive float_tolerance 1e-6
    limits: {time_multiplier: 3, time_safety_margin: 1.5, memory: 512, output: 1, code: 2, validation_time: 7}
    grading: {objective: min, show_test_data_groups: yes}
    """
    found = settings(tmp_path, text)
    assert found.types == {"scoring", "interactive"}
    assert (found.custom_validator, found.minimise) == (True, True)
    assert found.validator_flags == ("case_sensitive", "float_tolerance", "1e-6")
    assert (found.timing.ac_to_limit, found.timing.limit_to_tle) == (3, 1.5)
    bounds = found.bounds
    assert (bounds.memory_bytes, bounds.output_bytes, bounds.code_bytes) == (512 * MIB, MIB, 2048)
    assert bounds.validation.cpu_s == 7


def test_new_keys_are_read(tmp_path: Path) -> None:
    text = NEW + (
        "type: [scoring, multi-pass]\nlanguages: [cpp, python3]\nconstants: {most: 10, name: x}\n"
        "limits: {time_limit: 2.5, time_multipliers: {ac_to_time_limit: 4}, validation_passes: 5, "
        "compilation_time: 9}\n"
    )
    found = settings(tmp_path, text)
    assert found.types == {"scoring", "multi-pass"}
    assert (found.languages, found.constants) == (("cpp", "python3"), {"most": "10", "name": "x"})
    assert (found.timing.fixed_s, found.timing.fixed_by, found.timing.ac_to_limit) == (2.5, "problem.yaml", 4)
    assert found.bounds.passes == 5
    assert [note.partition("problem.yaml: ")[2].partition(" ")[0] for note in found.notes] == [
        "allow_file_writing",
        "limits:",
    ]
    assert "compilation_time has no effect" in found.notes[1]


@pytest.mark.parametrize(
    ("name", "text", "seconds"),
    [
        (".timelimit", "3\n", 3.0),
        ("domjudge-problem.ini", "probid='A'\ntimelimit='1.5'\n", 1.5),
        ("domjudge-problem.ini", "probid=A\n", None),
    ],
)
def test_a_fixed_limit_may_lie_beside(tmp_path: Path, name: str, text: str, seconds: float | None) -> None:
    assert settings(tmp_path, LEGACY, **{name: text}).timing.fixed_s == seconds


@pytest.mark.promise("packages")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LEGACY + "limits: {memory: -1}\n", ["memory", "-1"]),
        (LEGACY + "limits: {memory: 1.5}\n", ["memory", "whole"]),
        (LEGACY + "limits: 5\n", ["limits", "map"]),
        (LEGACY + "limits: {time_multiplier: fast}\n", ["time_multiplier", "'fast'"]),
        (LEGACY + "validation: special\n", ["validation", "special"]),
        (LEGACY + "validation: custom fast\n", ["'fast'"]),
        (LEGACY + "validation: default score\n", ["default"]),
        (LEGACY + "grading: {objective: most}\n", ["objective", "'most'"]),
        ("problem_format_version: 2026-01\n", ["2026-01", "2025-09"]),
        (NEW + "type: [pass-fail, scoring]\n", ["without pass-fail"]),
        (NEW + "type: [interactive, submit-answer]\n", ["submit-answer"]),
        (NEW + "type: guess\n", ["'guess'"]),
        (NEW + "type: []\n", ["type", "one or more"]),
        (NEW + "languages: []\n", ["languages", "one or more"]),
        (NEW + "limits: {memory: 0x" + "f" * 5000 + "}\n", ["memory", "number"]),
        (NEW + "limits: {memory: !!bool maybe}\n", ["YAML", "maybe"]),
        (NEW + 'limits: {memory: !!int ""}\n', ["YAML"]),
        (NEW + "limits: {memory: !!timestamp soon}\n", ["YAML"]),
        (NEW + "type: " + "[" * 20 + "scoring" + "]" * 20 + "\n", ["type", "texts"]),
        (NEW + "limits: {time_multipliers: {ac_to_time_limit: 0.5}}\n", ["ac_to_time_limit", "0.5"]),
        (NEW + "limits: {time_limit: 0}\n", ["time_limit", "0"]),
        (NEW + "limits: {time_limit: .inf}\n", ["time_limit", "inf"]),
        (NEW + "limits: {time_multipliers: {ac_to_time_limit: .inf}}\n", ["ac_to_time_limit", "inf"]),
        (NEW + "limits: {time_multipliers: {time_limit_to_tle: 1e999}}\n", ["time_limit_to_tle", "1e999"]),
        (LEGACY + "limits: {time_multiplier: .inf}\n", ["time_multiplier", "inf"]),
        (NEW + "constants: {a: [1]}\n", ["constants", "a"]),
        (LEGACY + "validaton: custom\n", ["'validaton'", "did you mean 'validation'"]),
        (LEGACY + "Limits: {memory: 5}\n", ["'Limits'", "did you mean 'limits'"]),
        (LEGACY + "limits: {memory: 5, memory: 6}\n", ["limits", "'memory'", "twice"]),
        (LEGACY + "limits: {memory: 5}\nlimits: {memory: 5}\n", ["'limits'", "twice"]),
        (NEW + "constants: {a: {value: [1]}}\n", ["constants", "a", "value"]),
        (NEW + "type: pass-fail interactive submit-answer\n", ["submit-answer"]),
        ("- a\n", ["map"]),
        ("a: [\n", ["YAML"]),
        ("a: !!python/object/apply:os.system [ls]\n", ["YAML"]),
        ("\x00", ["YAML"]),
    ],
)
def test_what_is_not_understood_is_refused_by_name(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(InvalidProblem) as caught:
        settings(tmp_path, text)
    assert all(word in str(caught.value) for word in ["problem.yaml", *words]), caught.value
    assert "\n" not in str(caught.value)


DRAFT = NEW.replace("2025-09", "2023-07-draft")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LEGACY + "colour: red\n", ["unknown key 'colour'", "not looked at"]),
        (LEGACY + "validator_flags: a\nvalidator_args: a\n", ["unknown key 'validator_args'"]),
        (LEGACY + "5: a\n", ["unknown key '5'"]),
        (LEGACY + "nane: Sum\n", ["unknown key 'nane'"]),
        (LEGACY + "name: Again\n", ["'name' is there twice"]),
        (LEGACY + "limits: {memory: 5, memory: 5}\n", ["limits: key 'memory' is there twice"]),
        (LEGACY + "libraries: gmp\ngrading: {colour: 1}\n", ["'libraries'", "grading: unknown key 'colour'"]),
        (LEGACY + "validation: custom score\n", ["score has no effect", "not scoring"]),
        (LEGACY + "languages: [cpp]\nconstants: {a: 1}\n", ["languages has no effect", "constants has no effect"]),
        (
            LEGACY + "limits: {validation_passes: 3, compilation_time: fast}\n",
            ["validation_passes", "compilation_time"],
        ),
        (NEW + "constants: {a b: 1, 7: 2}\n", ["'a b' is no name", "'7' is no name"]),
        (NEW + "languages: [python, cpp]\n", ["languages: 'python' is no language of the format"]),
        (NEW + "grading: {objective: min}\n", ["grading has no effect"]),
        (NEW + "allow_file_writing: maybe\n", ["'maybe' is neither"]),
        (NEW + "limits: {time_multipliers: {most: 5}}\n", ["time_multipliers: unknown key 'most'"]),
    ],
)
def test_what_judging_does_not_depend_on_is_noted_by_name(tmp_path: Path, text: str, words: list[str]) -> None:
    notes = settings(tmp_path, text).notes
    assert all(any(word in note for note in notes) for word in words), notes
    assert all(note.startswith(str(tmp_path / "sum/problem.yaml: ")) and "\n" not in note for note in notes)


@pytest.mark.parametrize("text", [LEGACY, "problem_format_version: legacy-icpc\n", DRAFT, NEW])
def test_a_package_that_has_nothing_of_another_version_is_not_noted(tmp_path: Path, text: str) -> None:
    more = "author: A\nsource: B\nsource_url: c\nlicense: cc0\nkeywords: d\nuuid: 1\nname: Sum\ntype: pass-fail\n"
    text = "".join(line + "\n" for line in dict.fromkeys(f"{text}{more}".splitlines()))
    assert [note for note in settings(tmp_path, text).notes if "allow_file_writing" not in note] == []


def test_unknown_keys_without_end_are_told_in_a_few_lines(tmp_path: Path) -> None:
    notes = settings(tmp_path, LEGACY + "".join(f"x{number}: 1\n" for number in range(1000))).notes
    assert (len(notes), "980 more unknown keys" in notes[-1]) == (21, True)


def test_what_another_version_has_is_followed_and_noted(tmp_path: Path) -> None:
    old = settings(
        tmp_path / "1", LEGACY + "type: interactive\nlimits: {time_limit: 3, time_multipliers: {ac_to_time_limit: 4}}"
    )
    assert (old.interactive, old.custom_validator, old.timing.fixed_s, old.timing.ac_to_limit) == (True, True, 3, 4)
    assert old.timing.limit_to_tle == 2
    draft = settings(
        tmp_path / "2",
        DRAFT + "validation: custom multi-pass\nvalidator_flags: a 'b c'\nlimits: {time_safety_margin: 3}\n",
    )
    assert (draft.types, draft.custom_validator) == ({"pass-fail", "multi-pass"}, True)
    assert (draft.validator_flags, draft.timing.limit_to_tle) == (("a", "b c"), 3)
    for found, said in (
        (old, ["interactive", "time_limit", "time_multipliers"]),
        (draft, ["validation", "validator_flags"]),
    ):
        assert all(any(f"{word} is of" in note and "followed" in note for note in found.notes) for word in said)


def test_an_early_drafts_maps_are_followed(tmp_path: Path) -> None:
    text = (
        DRAFT.replace("-draft", "")
        + "type: scoring\nvalidation: {interactive: true, multipass: true, scoring: false}\n"
    )
    found = settings(tmp_path, text + "limits: {time_multiplier: {ac_to_time_limit: 3, time_limit_to_tle: 1.4}}\n")
    assert (found.types, found.custom_validator) == ({"scoring", "interactive", "multi-pass"}, True)
    assert (found.timing.ac_to_limit, found.timing.limit_to_tle) == (3, 1.4)


@pytest.mark.parametrize(
    ("written", "read"),
    [("2023-07", "2023-07-draft"), ("2025-09-draft", "2025-09"), ("2023-07-draft", "2023-07-draft")],
)
def test_a_version_has_several_names(tmp_path: Path, written: str, read: str) -> None:
    found = settings(tmp_path, NEW.replace("2025-09", written))
    assert found.version == read
    assert any(f"{written!r} is read as {read!r}" in note for note in found.notes) == (written != read)


@pytest.mark.parametrize("text", ["type: [scoring, scoring, multi-pass]", "type: scoring multi-pass"])
def test_types_may_be_words_of_one_text(tmp_path: Path, text: str) -> None:
    assert settings(tmp_path, NEW + text).types == {"scoring", "multi-pass"}


def test_a_constant_may_be_written_in_several_ways(tmp_path: Path) -> None:
    text = NEW + "constants: {a: {value: 5, WORD: '{{b}}', n: 05}, b: 7, c: {x: 1}}\n"
    found = settings(tmp_path, text)
    assert (
        found.fill_in("{{a}} {{a.WORD}} {{a.n}} {{b}} {{c}} {{c.x}} {{d}} {{ b }}")
        == "5 {{b}} 05 7 {{c}} 1 {{d}} {{ b }}"
    )


def test_flags_are_split_as_a_shell_does_it_where_quotes_fit(tmp_path: Path) -> None:
    assert settings(tmp_path / "1", LEGACY + 'validator_flags: --say "a b"').validator_flags == ("--say", "a b")
    assert settings(tmp_path / "2", LEGACY + "validator_flags: it's fine").validator_flags == ("it's", "fine")


def test_a_few_lines_that_stand_for_billions_of_values_are_refused_in_one_short_line(tmp_path: Path) -> None:
    lines = [f"  c{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 15)]
    text = "\n".join([NEW + "credits:", "  c0: &a0 [x]", *lines, "type: *a14"])
    with pytest.raises(InvalidProblem, match=r"type: .*must be a list of texts") as caught:
        settings(tmp_path, text)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (".timelimit", "", "''"),
        (".timelimit", "two", "'two'"),
        ("domjudge-problem.ini", "timelimit = 2,5\n", "'2,5'"),
        ("domjudge-problem.ini", "timelimit = '-1'\n", "'-1'"),
    ],
)
def test_a_fixed_limit_that_is_no_number_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(InvalidProblem, match=f"{name}: time limit: {said}: must be"):
        settings(tmp_path, LEGACY, **{name: text})


def test_a_number_is_as_a_text_what_its_author_wrote(tmp_path: Path) -> None:
    found = settings(tmp_path, NEW + "constants: {a: 007, b: 0.00001, c: 1_000, d: 1:30, e: 1.50}\n")
    assert list(found.constants.values()) == ["007", "0.00001", "1_000", "1:30", "1.50"]
    assert settings(tmp_path / "2", LEGACY + "validator_flags: 010\n").validator_flags == ("010",)


def test_a_directory_that_is_no_package_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblem, match=r"no problem\.yaml"):
        read_settings(tmp_path)


def test_without_pyyaml_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ToolchainMissing, match="pip install pyyaml"):
        settings(tmp_path, LEGACY)
