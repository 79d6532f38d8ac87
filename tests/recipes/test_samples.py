"""Every shape of every format: a bad row costs nothing but itself, and the good one tells right from wrong."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from rows import OWN, Bytes, jsonl
from samples import SAMPLES as CONTEST_SAMPLES
from samples import Sample
from samples_assert import ASSERT_SAMPLES

from overlap.rows.row import SourceRow
from recipes.code_rl.cases import Judging
from recipes.code_rl.data import FORMATS, format_of, load_problems
from recipes.code_rl.task import CodeTask
from sandbox import Judgement, Pool, Program
from sandbox.rewards.calls import CONTEST_MODULES

pytest.importorskip("numpy")
SAMPLES = {**CONTEST_SAMPLES, **ASSERT_SAMPLES}


def load(folder: Path, sample: Sample) -> Any:
    path = jsonl(folder / "rows.jsonl", sample.good, sample.bad)
    return load_problems(path, Judging(packages=sample.packages))


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Judgement]]:
    """Sample → judgements of the right program, of the wrong one, and of the row's references."""

    async def judged() -> dict[str, list[Judgement]]:
        async with asyncio.timeout(110), Pool(packages=("numpy", *CONTEST_MODULES)) as pool:

            async def all_of(sample: Sample) -> list[Judgement]:
                (problem,) = load(tmp_path_factory.mktemp("sample"), sample).problems
                programs = map(Program, (sample.right, sample.wrong, *problem.references))
                return await asyncio.gather(*(pool.judge(problem.problem, program) for program in programs))

            found = await asyncio.gather(*map(all_of, SAMPLES.values()))
        return dict(zip(SAMPLES, found, strict=True))

    return asyncio.run(judged())


def test_every_format_has_a_sample_and_a_line_in_the_documents() -> None:
    """What has been forgotten of a new format is named. A format that an earlier one hides has no sample of its own."""
    documented = set(re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "data.md").read_text(), re.MULTILINE))
    columns = {known.columns for known in FORMATS}
    assert columns - documented == set(), "formats without a line in docs/data.md"
    assert documented - columns == {"id, split, source"}, "lines in docs/data.md of no format"  # a split file
    sampled = {format_of(SourceRow("", sample.good)).name for sample in SAMPLES.values()}
    assert {known.name for known in FORMATS} - sampled == set(), "formats without a sample"
    assert len(columns) == len({known.name for known in FORMATS}) == len(FORMATS)


@pytest.mark.promise("formats")
@pytest.mark.parametrize("name", SAMPLES)
def test_a_row_is_told_by_its_columns_and_a_bad_one_beside_it_is_counted(name: str, tmp_path: Path) -> None:
    sample = SAMPLES[name]
    found = load(tmp_path, sample)
    (bad,) = found.left_out
    assert [problem.problem.kind for problem in found.problems] == [sample.kind]
    assert (bad.place, bad.reason) == (f"{tmp_path}/rows.jsonl:2", sample.reason)
    assert format_of(SourceRow("", sample.good)).name == sample.format


@pytest.mark.promise("formats")
@pytest.mark.parametrize("name", SAMPLES)
def test_right_programs_are_accepted_and_wrong_ones_are_not(name: str, verdicts: dict[str, list[Judgement]]) -> None:
    right, wrong, *references = verdicts[name]
    assert (right.verdict, [case.message for case in right.cases if case.message]) == ("AC", [])
    assert wrong.verdict in ("WA", "RE")
    assert [str(judgement.verdict) for judgement in references] == ["AC"] * len(references)


@pytest.mark.promise("formats")
def test_hidden_in_a_pickle_nothing_is_called(tmp_path: Path) -> None:
    class Call:
        def __reduce__(self) -> Any:
            return print, ("called",)

    import base64
    import pickle
    import zlib

    text = base64.b64encode(zlib.compress(pickle.dumps(Call()))).decode()
    row = {"question_content": "?", "public_test_cases": "[]", "private_test_cases": text}
    found = load_problems(jsonl(tmp_path / "p.jsonl", SAMPLES["LiveCodeBench"].good, row))
    assert "names builtins.print" in found.left_out[0].detail


ODD: tuple[Any, ...] = (
    *(None, True, 7, -1.5, "", "x", "[", "{}", [], {}, [None], [[]], ["x"], [7], {"x": 1}, [{"input": None}]),
    *([{"input": [{}], "output": {}}], {"inputs": [7], "outputs": ["x"]}, {"input": "ab", "output": "cd"}),
)


@pytest.mark.promise("rows-left-out")
@pytest.mark.parametrize("name", SAMPLES)
def test_whatever_stands_in_a_column_costs_its_row_at_most(name: str, tmp_path: Path) -> None:
    sample, rows = SAMPLES[name], []
    for column in sample.good:
        rows += [{**sample.good, column: odd, "id": f"{column}{i}"} for i, odd in enumerate(ODD)]
    found = load_problems(jsonl(tmp_path / "odd.jsonl", OWN, *rows), Judging(packages=sample.packages))
    assert len(found.problems) + len(found.left_out) == 1 + len(rows)
    task = CodeTask()
    prompts = [task.prompt(Bytes(), problem) for problem in found.problems]
    assert all(probe.programs for prompt in prompts for probe in task.probes(prompt))
