"""The example that reconstructs from photographs: its views, its files, a small box."""

import numpy as np
import pytest
from PIL import Image

import calibrated_views as views
from crfield.graphs.vision.photo_consistency import sample_bilinear
from example_runs import run_quick, run_script


def write_views(folder, scene):
    """Images and par.txt, as both sets of data have them."""
    folder.mkdir(parents=True)
    lines = [str(len(scene.views))]
    for k, view in enumerate(scene.views):
        pixels = np.rint(255 * np.clip(view.image, 0, 1)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{k}.png")
        # P = K [R | t] with an upper triangular K: the inverse of M by its QR decomposition.
        q, r = np.linalg.qr(np.linalg.inv(view.camera.projection[:, :3]))
        signs = np.diag(np.sign(np.diag(r)))
        k_matrix, rotation = np.linalg.inv(signs @ r), (q @ signs).T
        translation = np.linalg.solve(k_matrix, view.camera.projection[:, 3])
        numbers = [*k_matrix.ravel(), *rotation.ravel(), *translation]
        lines.append(" ".join([f"{k}.png", *(f"{number:.12g}" for number in numbers)]))
    (folder / "x_par.txt").write_text("\n".join(lines) + "\n\n", "utf-8")


def test_smaller_and_cut_views_show_points_where_their_cameras_say():
    scene = views.make_scene(4, 60)
    view = scene.views[0]
    rows, columns = np.indices(view.image.shape[:2])
    ramp = np.stack([columns, rows, 0 * rows], -1).astype(float)
    view = views.View(view.name, view.camera, ramp, view.truth)
    points = np.random.default_rng(0).uniform(-0.2, 0.2, (20, 3))
    expected, _ = view.camera.project(points)
    for changed in (view.shrunk(3), view.cropped(points, margin=2), view.shrunk(2).cropped(points)):
        assert changed.image.shape[:2] == changed.camera.image_size == changed.truth.shape
        assert changed.image.size < view.image.size
        places, _ = changed.camera.project(points)
        shown, inside = sample_bilinear(changed.image, places)
        assert inside.all()
        np.testing.assert_allclose(shown[:, :2], expected, atol=1e-9)


def test_depths_of_the_box_are_where_views_agree():
    scene = views.make_scene(12, 60)
    first, second = scene.views[:2]
    hit = ~np.isnan(first.truth)
    assert 0.05 < hit.mean() < 0.6
    origins, ways = first.camera.rays()
    lengths = first.truth.ravel() / first.camera.project(origins + ways)[1]
    points = (origins + lengths[:, None] * ways)[hit.ravel()]
    pixels, depths = second.camera.project(points)
    shown, inside = sample_bilinear(second.image, pixels)
    surface, _ = sample_bilinear(np.nan_to_num(second.truth, nan=1e9), pixels)
    in_sight = inside & (depths < surface + 0.01)
    assert in_sight.mean() > 0.4
    assert np.median(np.abs(shown - first.image[hit])[in_sight]) < 0.1


def test_both_formats_are_read(tmp_path):
    scene = views.make_scene(3, 20)
    for name in ("ring", "city"):
        write_views(tmp_path / "data" / name, scene)
    (tmp_path / "data" / "ring" / "README.txt").write_text(
        "The (tight) bounding box is\n(-0.5 -0.5 -0.5)\n(0.5 0.5 0.25)\n", "utf-8"
    )
    (tmp_path / "data" / "city" / "scene_info.xml").write_text(
        '<bbox maxx="0.5" maxy="0.5" maxz="0.25" minx="-0.5" miny="-0.5 " minz="-0.5">', "utf-8"
    )
    folders = views.find_scenes(tmp_path / "data")
    assert list(folders) == ["city", "ring"]
    for name, folder in folders.items():
        read = views.read_scene(folder)
        assert read.name == name
        np.testing.assert_array_equal([read.low, read.high], [[-0.5] * 3, [0.5, 0.5, 0.25]])
        assert len(read.views) == 3
        for view, made in zip(read.views, scene.views, strict=True):
            read_p, made_p = (
                each.camera.projection / np.linalg.norm(each.camera.projection[2, :3])
                for each in (view, made)
            )
            np.testing.assert_allclose(read_p, made_p, atol=1e-6)
            np.testing.assert_allclose(view.image, np.clip(made.image, 0, 1), atol=0.003)
        assert (read.background == 0).all() == (name == "ring")


@pytest.mark.slow
def test_a_small_box(tmp_path):
    printed, figures = run_quick("reconstruct_views", tmp_path / "new")
    assert "belief propagation" in printed
    fusion, propagation = (
        figures[method]["mean"] for method in ("independent fusion", "belief propagation")
    )
    assert propagation["psnr"] > fusion["psnr"] + 1
    assert propagation["ncc"] > fusion["ncc"]
    assert propagation["depths_right"] > max(80, fusion["depths_right"] + 5)
    for name in ("depths", "held_out", "voxels"):
        with Image.open(tmp_path / "new" / f"{name}.png") as opened:
            assert np.ptp(np.asarray(opened)) > 100
    with np.load(tmp_path / "new" / "occupancies.npz") as saved:
        for name in ("fusion", "propagation"):
            assert saved[name].shape == tuple(figures["grid"])
            assert 0 <= saved[name].min() < 0.1 < 0.9 < saved[name].max() <= 1
    with np.load(tmp_path / "new" / "depths.npz") as saved:
        assert len(saved.files) == 9
        assert all(0.01 < np.isfinite(saved[name]).mean() < 0.9 for name in saved.files)


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "message"), [
    (["--held-out", "1"], "must be 2 at least"), (["--data", "."], "no *par.txt in ."),
])
def test_wrong_arguments_are_refused(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run_script("reconstruct_views", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
