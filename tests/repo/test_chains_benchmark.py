"""The benchmark of chains at a size that times nothing."""

import json

import pytest

from benchmarks import chains


def test_every_part_runs_and_is_written(tmp_path, capsys):
    assert chains.run(chains.TINY, list(chains.SECTIONS), tmp_path) == 0
    (path,) = tmp_path.iterdir()
    sections = json.loads(path.read_text())["sections"]
    assert set(sections) == set(chains.SECTIONS)
    assert len(sections["sums"]["cases"]) == 2
    assert capsys.readouterr().out.count("\n## ") == len(sections)


@pytest.mark.parametrize("name", ["best_chains", "k_best_chains", "sample_chains"])
def test_what_is_wrong_is_not_timed(name, tmp_path, capsys, monkeypatch):
    right = getattr(chains, name)

    def wrong(costs, transitions, *rest, **options):
        return right(-costs, transitions, *rest, **options)

    monkeypatch.setattr(chains, name, wrong)
    assert chains.run(chains.TINY, ["others"], tmp_path) == 1
    assert "REFUSED" in capsys.readouterr().out


@pytest.mark.parametrize("part", [0, 1, 2])
def test_wrong_sums_are_not_timed(part, tmp_path, capsys, monkeypatch):
    right = chains.sum_batch

    def wrong(*arguments):
        found = list(right(*arguments))
        found[part] = found[part] + 0.01
        return tuple(found)

    monkeypatch.setattr(chains, "sum_batch", wrong)
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
