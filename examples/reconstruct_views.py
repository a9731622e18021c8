"""Occupancy and depth from photographs: belief propagation over rays against independent fusion.

For each pixel of each photograph, `sweep_planes` says at which depths other photographs agree; the
scores of its ray are exp(beta ncc), and exp(beta ncc_0) for meeting nothing. `fuse_independent`
sums what each ray says by itself; `infer` lets rays explain each other.

Some views are held out. Each of them is put together from the depths that the occupancies give it
and the colors that three other views have there, some 20 degrees away where there are such, and
compared with what was photographed: peak signal-to-noise ratio, and mean correlation of windows.
Pixels count whose rays cross the grid and, as long as they are in it, stay in the images of those
three views; if there is more behind the grid, as in aerial views, rays must leave it at its bottom.
beta, ncc_0 and the prior are chosen for both methods alike, by the best ratio on the held-out views
other than the one that is reported.

--data is a folder of calibrated views (*par.txt with README.txt, as Middlebury has it, or with
scene_info.xml), or one with such folders in it; without it a box is made up, whose depths are
known.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from calibrated_views import Floats, Scene, find_scenes, make_scene, read_scene
from crfield.graphs import infer
from crfield.show.pictures import side_by_side, stack
from photographs import (
    FUSION,
    PROPAGATION,
    Photographs,
    Settings,
    as_bytes,
    depth_picture,
    draw_voxels,
    voxel_colors,
)

CHOICES = {
    "beta": (4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0), "empty": (0.0, 0.2, 0.4, 0.6),
    "prior": (0.01, 0.03, 0.1, 0.3),
}


class Search:
    """Settings of a method for which held-out views come out best."""

    def __init__(self, photos: Photographs, method: str):
        self.photos, self.method = photos, method
        self.tried: dict[Settings, dict[int, dict[str, float]]] = {}

    def ratio(self, settings: Settings, views: list[int]) -> float:
        """The mean over some views."""
        if settings not in self.tried:
            occupied = self.photos.reconstruct(self.method, settings)
            self.tried[settings] = self.photos.judge(occupied)
        return float(np.mean([self.tried[settings][k]["psnr"] for k in views]))

    def best(self, views: list[int], rounds: int) -> Settings:
        """One setting after the other, until none helps."""
        found = Settings()
        for _ in range(rounds):
            before = found
            for name, values in CHOICES.items():
                tries = [replace(found, **{name: value}) for value in values]
                found = max(tries, key=lambda settings: self.ratio(settings, views))
            if found == before:
                break
        return found


def write_results(
    folder: Path, photos: Photographs, chosen: dict[str, Settings], found: dict[str, Floats]
) -> None:
    """Occupancies, expected depths of the known views, and pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    result = infer(photos.model(chosen[PROPAGATION]))
    entries = rays = 0
    depths, rows = {}, []
    shown = {photos.known[int((k + 0.5) * len(photos.known) / 3)] for k in range(3)}
    for k, (_, agreement, alone) in zip(photos.known, photos.agreements, strict=True):
        sight = photos.sights[k]
        first = result.depths[entries : entries + len(sight.voxels)]
        none = result.empty[rays : rays + len(sight.directions)]
        entries, rays = entries + len(first), rays + len(none)
        seen = sight.expect(first, none)
        depths[sight.view.name] = np.where(seen[1] < 0.5, np.nan, seen[0]).astype(np.float32)
        if k in shown:
            ends = np.percentile(sight.depths, (1, 99))
            singly = alone, (agreement > chosen[PROPAGATION].empty) & sight.crosses
            maps = singly, sight.render(found[FUSION]), seen
            rows.append(side_by_side(
                as_bytes(sight.view.image), *(depth_picture(each, ends) for each in maps),
                titles=[sight.view.name, "best of each ray", FUSION, PROPAGATION], height=240,
            ))
    stack(*rows).save(folder / "depths.png")
    np.savez_compressed(folder / "depths.npz", **depths)
    np.savez_compressed(
        folder / "occupancies.npz", origin=photos.grid.origin, spacing=photos.grid.spacing,
        **{method.split()[1]: q.astype(np.float32) for method, q in found.items()},
    )
    stack(*(
        side_by_side(
            as_bytes(photos.sights[k].view.image),
            *(as_bytes(photos.synthesize(k, q)) for q in found.values()),
            titles=[photos.sights[k].view.name, *found], height=240,
        )
        for k in photos.held
    )).save(folder / "held_out.png")
    rows = []
    for method, q in found.items():
        colors = voxel_colors(photos.grid, [photos.sights[k] for k in photos.known], q)
        beside = photos.sights[photos.held[0]].view
        turned = [draw_voxels(photos.grid, q, colors, beside, angle) for angle in (-30, 0, 30)]
        rows.append(side_by_side(*map(as_bytes, turned), titles=["", method, ""], height=240))
    stack(*rows).save(folder / "voxels.png")


def compare(scene: Scene, side: int, n_held: int, rounds: int, folder: Path) -> None:
    """Choose settings, reconstruct, print and write what comes out."""
    start = time.perf_counter()
    photos = Photographs(scene, side, n_held)
    n_entries = sum(len(photos.sights[k].voxels) for k in photos.known)
    print(
        f"{scene.name}: {len(photos.known)} views and {len(photos.held)} held out, grid "
        f"{photos.grid.shape}, {n_entries / 1e6:.1f} million voxels on rays"
    )
    figures: dict[str, object] = {"scene": scene.name, "grid": list(photos.grid.shape)}
    chosen, found = {}, {}
    for method in (FUSION, PROPAGATION):
        search = Search(photos, method)
        folds = {
            k: search.best([j for j in photos.held if j != k], rounds) for k in photos.held
        }
        chosen[method] = search.best(photos.held, rounds)
        found[method] = photos.reconstruct(method, chosen[method])
        judged = {k: search.tried[settings][k] for k, settings in folds.items()}
        means = {
            name: float(np.mean([each[name] for each in judged.values()]))
            for name in judged[photos.held[0]]
        }
        figures[method] = {
            "mean": means, "settings": asdict(chosen[method]), "tried": len(search.tried),
            "views": {
                photos.sights[k].view.name: {**judged[k], "settings": asdict(folds[k])}
                for k in photos.held
            },
        }
        texts = "  ".join(f"{name} {value:.3f}" for name, value in means.items())
        print(f"  {method:20}{texts}  {chosen[method]}", flush=True)
    write_results(folder, photos, chosen, found)
    seconds = time.perf_counter() - start
    text = json.dumps({**figures, "seconds": round(seconds, 1)}, indent=2)
    (folder / "figures.json").write_text(f"{text}\n", "utf-8")
    print(f"  {seconds:.0f} s; occupancies, depths, pictures and figures are in {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of calibrated views")
    parser.add_argument("--scene", nargs="+", help="names of the folders to take, all by default")
    parser.add_argument("--side", type=int, help="voxels along the longest side: 64; 48 for a box")
    parser.add_argument("--held-out", type=int, default=3, help="views, 2 or more")
    parser.add_argument("--quick", action="store_true", help="a small box, a short search")
    parser.add_argument("-o", "--output", type=Path, default=Path("reconstruct_views"))
    options = parser.parse_args()
    if options.held_out < 2:
        parser.error("--held-out must be 2 at least: settings for one view come from the others.")
    if options.quick:
        compare(make_scene(12, 48), 16, options.held_out, 1, options.output)
    elif options.data is None:
        side = options.side or 48
        compare(make_scene(pixels=2 * side), side, options.held_out, 3, options.output)
    else:
        folders = find_scenes(options.data)
        if not folders:
            parser.error(f"no *par.txt in {options.data}; give a folder of calibrated views.")
        for name in options.scene or folders:
            if name not in folders:
                parser.error(f"no {name} in {options.data}; there are: {', '.join(folders)}.")
            scene = read_scene(folders[name])
            compare(scene, options.side or 64, options.held_out, 3, options.output / name)


if __name__ == "__main__":
    main()
