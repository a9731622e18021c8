"""Studies that were kept: taken only with their own settings and commit, reported only in full."""

import json
import sys
from pathlib import Path

import pytest

from experiments import pattern_tables as tables

ROW = {"test": 60.0, "test_pooled": 59.0, "validation": 58.0, "train": 57.0}


def keep(folder, name, seed, **changes):
    study = {
        "settings": tables.settings_of(name, seed), "commit": "abc", "rows": {"unary": ROW}
    } | changes
    tables.study_path(name, seed, folder).write_text(json.dumps(study))
    return study


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "provenance", lambda: {"commit": "abc"})
    return tmp_path


def find(folder, **options):
    return tables.find_study("birds", 1, Path("no data"), folder, **options)


def test_a_kept_study_comes_back(cache):
    assert keep(cache, "birds", 1) == find(cache)


def test_a_study_of_other_settings_is_refused(cache, monkeypatch):
    keep(cache, "birds", 1)
    monkeypatch.setattr(tables, "N_EPOCHS", 3)
    with pytest.raises(SystemExit, match=r"'n_epochs': 3.*'n_epochs': 60.*delete it"):
        find(cache)
    tables.study_path("birds", 1, cache).write_text(json.dumps({"unary": ROW}))  # without any
    with pytest.raises(SystemExit, match="got None"):
        find(cache, any_commit=True)


def test_a_study_of_another_commit_needs_asking_for(cache):
    keep(cache, "birds", 1, commit="def")
    with pytest.raises(SystemExit, match=r"commit 'abc', got 'def'.*--any-commit"):
        find(cache)
    assert find(cache, any_commit=True)["commit"] == "def"


def run(cache, monkeypatch, *words):
    command = ["pattern_tables.py", "--data", str(cache), "--cache", str(cache), *words]
    monkeypatch.setattr(sys, "argv", command)
    tables.main()


def test_a_report_is_written_only_of_all_studies(cache, monkeypatch, capsys):
    results, written = cache / "results", []
    results.mkdir()
    monkeypatch.setattr(tables, "RESULTS", results)
    monkeypatch.setattr(tables, "report", lambda *parts: written.append(parts))
    for name in tables.STUDIES:
        for seed in tables.SEEDS:
            keep(cache, name, seed)
    for words in (["--studies", "birds"], ["--seeds", "0"]):
        run(cache, monkeypatch, *words)
        assert "no report is written" in capsys.readouterr().out
        assert not written
        assert not list(results.iterdir())
    run(cache, monkeypatch)
    ((_, paragraphs, facts),) = written
    assert "## birds, 3 seeds" in paragraphs[3]
    assert facts["commits of the studies"] == "abc"
    kept = json.loads((results / "pattern_tables.json").read_text())
    assert kept["birds"][1]["settings"]["seed"] == 1
