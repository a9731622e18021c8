"""The benchmark of chains at a size that times nothing."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "benchmarks").is_dir():
    pytest.skip("an sdist comes without the benchmarks", allow_module_level=True)
sys.path.insert(0, str(ROOT))

from benchmarks import chains  # noqa: E402


def test_every_part_runs_and_is_written(tmp_path, capsys):
    assert chains.run(chains.TINY, list(chains.SECTIONS), tmp_path) == 0
    (path,) = tmp_path.iterdir()
    sections = json.loads(path.read_text())["sections"]
    assert set(sections) == set(chains.SECTIONS)
    assert len(sections["sums"]["cases"]) == 2
    assert capsys.readouterr().out.count("\n## ") == len(sections)


@pytest.mark.parametrize("name", ["best", "k_best", "sample"])
def test_what_is_wrong_is_not_timed(name, tmp_path, capsys, monkeypatch):
    right = getattr(chains, name)

    def wrong(given, *rest, **options):
        opposite = chains.Chains.checked(-given.costs, given.offsets, given.transitions)
        return right(opposite, *rest, **options)

    monkeypatch.setattr(chains, name, wrong)
    assert chains.run(chains.TINY, ["others"], tmp_path) == 1
    assert "REFUSED" in capsys.readouterr().out


@pytest.mark.parametrize("part", [0, 1, 2])
def test_wrong_sums_are_not_timed(part, tmp_path, capsys, monkeypatch):
    right = chains.sum_chains

    def wrong(*arguments):
        found = list(right(*arguments))
        found[part] = found[part] + 0.01
        return tuple(found)

    monkeypatch.setattr(chains, "sum_chains", wrong)
    assert chains.run(chains.TINY, ["sums"], tmp_path) == 1
    assert capsys.readouterr().out.count("REFUSED") == 2


def test_no_repeats_are_refused(capsys):
    with pytest.raises(SystemExit):
        chains.main(["--repeats", "0"])
    assert "--repeats must be at least 1" in capsys.readouterr().err


def test_a_wrong_loss_is_refused(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(chains.ChainCase, "peer", lambda self: lambda: 0.0)
    assert chains.run(chains.TINY, ["sums"], tmp_path) == 1
    assert capsys.readouterr().out.count("REFUSED") == 2
