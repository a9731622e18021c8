"""The benchmark of factor graphs at a size that times nothing."""

import json

import numpy as np
import pytest

from benchmarks import graphs


def test_every_part_runs_and_is_written(tmp_path, capsys):
    assert graphs.run(graphs.TINY, tmp_path) == 0
    (path,) = tmp_path.iterdir()
    sections = json.loads(path.read_text())["sections"]
    assert sections["grids"]["sum-product"]["error"] < 1e-4
    assert sections["grids"]["max-product"]["error"] < 1e-4
    assert len(sections["learning"]["seconds"]) == 5
    assert "twice the C states" in capsys.readouterr().out


def test_other_beliefs_are_refused():
    graph, _ = graphs.potts_grid(4, 3)
    wrong = np.zeros((4, 4, 3))
    with pytest.raises(graphs.Disagreement, match="sum-product differ"):
        graphs.check_grid(graph, 3, 1.0, wrong)


def test_no_repeats_are_refused(capsys):
    with pytest.raises(SystemExit):
        graphs.main(["--repeats", "0"])
    assert "at least 1" in capsys.readouterr().err
