"""The benchmarks of cuts, chains, factor graphs and rays at a size that times nothing."""

import json

import numpy as np
import pytest

from benchmarks import chains, graphcut, graphs, rays


def run_tiny(module, folder, *parts):
    """The sections of a run of `module` that refuses nothing."""
    assert module.run(module.TINY, *parts, folder) == 0
    (path,) = folder.iterdir()
    return json.loads(path.read_text())["sections"]


def refused(module, folder, capsys, *parts):
    """How many refusals a run prints, and the whole text."""
    assert module.run(module.TINY, *parts, folder) == 1
    printed = capsys.readouterr().out
    return printed.count("REFUSED"), printed


@pytest.mark.parametrize(
    ("module", "part", "n_cases"), [(chains, "sums", 2), (graphcut, "cuts", 5)]
)
def test_every_part_runs_and_is_written(module, part, n_cases, tmp_path, capsys):
    sections = run_tiny(module, tmp_path, list(module.SECTIONS))
    assert set(sections) == set(module.SECTIONS)
    assert len(sections[part]["cases"]) == n_cases
    assert capsys.readouterr().out.count("\n## ") == len(sections)


def test_graphs_are_timed(tmp_path, capsys):
    sections = run_tiny(graphs, tmp_path)
    assert sections["grids"]["sum-product"]["error"] < 1e-4
    assert sections["grids"]["max-product"]["error"] < 1e-4
    assert len(sections["learning"]["seconds"]) == 5
    assert "twice the C states" in capsys.readouterr().out


def test_rays_are_timed(tmp_path, capsys):
    section = run_tiny(rays, tmp_path)["rays"]
    assert section["rays"] == 108
    assert section["entries"] > 108
    assert 0 < section["message_error"] < 1e-3
    assert "sum-product, 3 iterations" in capsys.readouterr().out


@pytest.mark.parametrize("module", [chains, graphs, rays])
def test_no_repeats_are_refused(module, capsys):
    with pytest.raises(SystemExit):
        module.main(["--repeats", "0"])
    assert "--repeats must be at least 1" in capsys.readouterr().err


def test_a_wrong_energy_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(graphcut.CutCase, "cut", lambda self: 0.0)
    assert refused(graphcut, tmp_path, capsys, ["cuts", "batch"])[0] == 6


@pytest.mark.parametrize("name", ["best", "k_best", "sample"])
def test_what_is_wrong_is_not_timed(name, tmp_path, capsys, monkeypatch):
    right = getattr(chains, name)

    def wrong(given, *rest, **options):
        opposite = chains.Chains.checked(-given.costs, given.offsets, given.transitions)
        return right(opposite, *rest, **options)

    monkeypatch.setattr(chains, name, wrong)
    assert refused(chains, tmp_path, capsys, ["others"])[0] >= 1


@pytest.mark.parametrize("part", [0, 1, 2])
def test_wrong_sums_are_not_timed(part, tmp_path, capsys, monkeypatch):
    right = chains.sum_chains

    def wrong(*arguments):
        found = list(right(*arguments))
        found[part] = found[part] + 0.01
        return tuple(found)

    monkeypatch.setattr(chains, "sum_chains", wrong)
    assert refused(chains, tmp_path, capsys, ["sums"])[0] == 2


def test_a_wrong_loss_is_refused(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(chains.ChainCase, "peer", lambda self: lambda: 0.0)
    assert refused(chains, tmp_path, capsys, ["sums"])[0] == 2


def test_other_beliefs_are_refused():
    graph, _ = graphs.potts_grid(4, 3)
    wrong = np.zeros((4, 4, 3))
    with pytest.raises(graphs.Disagreement, match="sum-product differ"):
        graphs.check_grid(graph, 3, 1.0, wrong)


@pytest.mark.parametrize(("name", "spoil", "words"), [
    ("infer", lambda right: lambda model, **options: right(model, **options | {"temperature": 1.0}),
     "REFUSED: messages of max-product"),
    ("fuse_independent", lambda right: lambda model, **options: right(model) + 0.01,
     "REFUSED: probabilities of fusion"),
    ("TOLERANCE", lambda right: 0.0, "REFUSED"),
])
def test_wrong_rays_are_refused(name, spoil, words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rays, name, spoil(getattr(rays, name)))
    assert words in refused(rays, tmp_path, capsys)[1]


def test_wrong_traversal_is_refused(monkeypatch):
    case = rays.ball_case(rays.TINY)
    rays.check_traversal(case)
    right = rays.VoxelGrid.traverse

    def wrong(self, origins, ways, **options):
        return right(self, origins, np.roll(ways, 1, 0), **options)

    monkeypatch.setattr(rays.VoxelGrid, "traverse", wrong)
    with pytest.raises(rays.Disagreement, match="not timed"):
        rays.check_traversal(case)
