"""`crfield refine` of folders: what a rerun skips, several at a time, interruptions."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from contextlib import redirect_stdout, suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import crfield.cli.refine_folder as folder_command
from crfield import DenseCRF, Pairwise, Potts, Spatial, datasets
from crfield.cli import main, masks
from crfield.cli.jobs import Pairing, pair_files, possible_results, split_name
from crfield.cli.outputs import reserved
from crfield.cli.workers import WorkerLost, Workers
from crfield.datasets import label_maps
from crfield.io.images import file_stem, file_suffix
from crfield.io.manifest import MANIFEST, History, Manifest, fingerprint

SCENES = datasets.synthetic_scenes(4, size=(12, 14), n_labels=3, seed=4)
COMMAND = ["refine", "photos", "--labels", "masks", "-o", "out", "--threads", "1"]
NAMES = [f"scene-{number}.png" for number in range(len(SCENES))]


@pytest.fixture(autouse=True)
def photos(tmp_path, monkeypatch):
    """Folders of a few images and masks."""
    monkeypatch.chdir(tmp_path)
    write_photos(SCENES)


def write_photos(scenes):
    for folder in ("photos", "masks"):
        Path(folder).mkdir(exist_ok=True)
    for scene in scenes:
        Image.fromarray(scene.image).save(f"photos/{scene.name}.png")
        Image.fromarray(scene.mask.astype(np.uint8)).save(f"masks/{scene.name}.png")


def refine(capsys, *words, command=COMMAND, code=0):
    """Names of the images that were refined, and what else was said."""
    capsys.readouterr()
    assert main([*command, *words, "-v"]) == code
    said = capsys.readouterr()
    lines = [line.split(" -> ") for line in said.out.splitlines()]
    rest = "\n".join(line[0] for line in lines if len(line) == 1)
    return [Path(line[0]).stem for line in lines if len(line) > 1], rest + said.err


def lines():
    return [json.loads(line) for line in Path("out", MANIFEST).read_text().splitlines()]


def done_names():
    return [line["done"] for line in lines() if "done" in line]


class TestReruns:
    def test_nothing_is_done_twice(self, capsys):
        assert refine(capsys)[0] == [f"scene-{number}" for number in range(4)]
        before = {path.name: path.stat() for path in Path("out").glob("*.png")}
        found, error = refine(capsys)
        assert found == []
        assert "out: 4 images: 4 done before (--overwrite does them again), " in error
        assert {path.name: path.stat() for path in Path("out").glob("*.png")} == before
        assert len(refine(capsys, "--overwrite")[0]) == 4
        assert refine(capsys)[0] == []

    def test_the_report_names_what_was_done_before(self, capsys):
        refine(capsys)
        Path("out", NAMES[2]).unlink()
        capsys.readouterr()
        assert main([*COMMAND, "--json"]) == 0
        records = json.loads(capsys.readouterr().out)
        unchanged = {record["output"] for record in records if record.get("unchanged")}
        assert unchanged == {str(Path("out", NAMES[i])) for i in (0, 1, 3)}
        assert [record["output"] for record in records if "n_iter" in record] == [
            str(Path("out", NAMES[2]))]

    @pytest.mark.parametrize("folder", ["photos", "masks"])
    def test_changed_inputs(self, capsys, folder):
        refine(capsys)
        path = Path(folder, "scene-1.png")
        Image.fromarray(np.roll(np.asarray(Image.open(path)), 3, axis=1)).save(path)
        assert refine(capsys)[0] == ["scene-1"]
        assert refine(capsys)[0] == []

    def test_a_change_of_the_same_length_is_seen(self, capsys):
        np.save("masks/scene-1.npy", SCENES[1].mask.astype(np.uint8))
        Path("masks/scene-1.png").unlink()
        refine(capsys)
        np.save("masks/scene-1.npy", (2 - SCENES[1].mask).astype(np.uint8))
        os.utime("masks/scene-1.npy", (7, 7))
        assert refine(capsys)[0] == ["scene-1"]

    def test_copies_are_no_change(self, capsys):
        refine(capsys)
        for path in [*Path("photos").iterdir(), *Path("out").glob("*.png")]:
            os.utime(path, (5, 5))
        assert refine(capsys)[0] == []

    @pytest.mark.parametrize("words", [
        ["--spatial", "2"], ["--no-bilateral"], ["--max-iter", "3"], ["--overlay"],
        ["--unknown", "none"], ["--block", "8"],
    ], ids=lambda words: words[0])
    def test_other_settings(self, capsys, words):
        refine(capsys)
        assert len(refine(capsys, *words)[0]) == 4
        assert refine(capsys, *words)[0] == []
        assert len(refine(capsys)[0]) == 4

    def test_threads_jobs_and_talk_are_no_settings(self, capsys):
        refine(capsys)
        assert refine(capsys, "--threads", "2", "--jobs", "3", "-v")[0] == []

    def test_another_model_of_the_same_name(self, capsys):
        for weight in (1.0, 2.0):
            DenseCRF(3, [Pairwise(Spatial(2.0), Potts(weight))]).save("model")
            assert len(refine(capsys, "--model", "model")[0]) == 4
            assert refine(capsys, "--model", "model")[0] == []

    @pytest.mark.parametrize("name", [NAMES[1], "scene-1_overlay.png"])
    def test_a_missing_file_is_made_again(self, capsys, name):
        refine(capsys, "--overlay")
        Path("out", name).unlink()
        assert refine(capsys, "--overlay")[0] == ["scene-1"]
        assert Path("out", name).exists()

    def test_an_image_that_changes_while_it_is_read_is_read_again(self, capsys, monkeypatch):
        infer = folder_command.crfield.refine

        @functools.wraps(infer)
        def touch_and_infer(*arguments, **options):
            os.utime("photos/scene-0.png", (9, 9))
            return infer(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr("crfield.refine", touch_and_infer)
            refine(capsys)
        assert refine(capsys)[0] == ["scene-0"]


def write_masks(scenes=SCENES):
    for scene in scenes:
        mask = np.where(scene.mask > 0, 255, 0).astype(np.uint8)
        mask[:2, :2] = 0
        Image.fromarray(mask).save(f"masks/{scene.name}.png")


class TestMasks:
    """Maps of 0 and 255 alone are masks, if all of the folder are."""

    def test_all(self, capsys):
        write_masks()
        assert len(refine(capsys)[0]) == len(SCENES)
        for name in NAMES:
            assert set(np.unique(np.asarray(Image.open(Path("out", name))))) <= {0, 255}

    def test_one_map_with_another_label(self, capsys):
        write_masks()
        Image.fromarray(SCENES[-1].mask.astype(np.uint8)).save(f"masks/{SCENES[-1].name}.png")
        done, said = refine(capsys, code=1)
        assert done == [SCENES[-1].name]
        assert said.count("add --unknown none if 255 is a label too") == len(SCENES) - 1

    @pytest.mark.parametrize("block", [[], ["--block", "8"]], ids=["whole", "blocks"])
    @pytest.mark.parametrize("values", [[0, 1, 255], [0, 1, 0], [7, 7, 255]])
    def test_a_map_that_nobody_looked_at_is_held_to_the_others(
        self, capsys, monkeypatch, values, block
    ):
        monkeypatch.setattr(masks, "_LOOKED_AT", 2)
        write_masks()
        labels = np.array(values, np.uint8)[SCENES[1].mask]
        Image.fromarray(labels).save("masks/scene-1.png")
        found, said = refine(capsys, *block, code=1)
        assert found == ["scene-0", "scene-2", "scene-3"]
        assert (
            f"expected a mask of 0 and 255, as others of the folder are, but masks/scene-1.png "
            f"holds {max(values[:2])}; add --unknown 255 if" in said
        )
        assert not Path("out", NAMES[1]).exists()
        if len(set(values)) == 3:
            # The others were read like this.
            assert refine(capsys, *block, "--unknown", "none")[0] == ["scene-1"]
            assert refine(capsys, *block, "--unknown", "255", code=1)[0] == ["scene-1"]

    @pytest.mark.filterwarnings("always")
    def test_beside_a_model_of_more_labels_255_is_unknown(self, capsys):
        write_masks()
        DenseCRF(3, [Pairwise(Spatial(2.0), Potts(1.0))]).save("model")
        found, said = refine(capsys, "--model", "model")
        assert len(found) == len(SCENES)
        assert "255 marks unknown pixels" in said
        for name in NAMES:
            assert not np.asarray(Image.open(Path("out", name))).any()

    def test_one_that_was_looked_at_decides(self, capsys, monkeypatch):
        monkeypatch.setattr(masks, "_LOOKED_AT", 2)
        write_masks()
        Image.fromarray(SCENES[2].mask.astype(np.uint8)).save("masks/scene-2.png")
        assert refine(capsys, code=1)[0] == ["scene-2"]

    def test_maps_without_foreground_decide_nothing_else(self, capsys, monkeypatch):
        monkeypatch.setattr(masks, "_LOOKED_AT", 2)
        write_masks()
        for number in (0, 2):
            Image.new("L", (14, 12)).save(f"masks/scene-{number}.png")
        found, said = refine(capsys)
        assert found == [f"scene-{number}" for number in range(len(SCENES))]
        assert "2 of 4 label maps hold a single label and were written as they were" in said

    def test_a_run_that_is_refused_reads_none(self, capsys, monkeypatch):
        write_masks()
        monkeypatch.setattr(label_maps, "read_labels", lambda _: pytest.fail("a map was read"))
        Path("out").mkdir()
        with reserved([Path("out", MANIFEST)]):
            assert "another run of crfield" in refine(capsys, code=2)[1]


class TestForeignFiles:
    @pytest.mark.parametrize("name", [NAMES[1], "scene-1_overlay.png"])
    def test_they_are_never_replaced(self, capsys, name):
        Path("out").mkdir()
        Path("out", name).write_text("precious")
        found, error = refine(capsys, "--overlay", code=2)
        assert found == []
        assert f"cannot write {Path('out', name)}: it was not written by crfield, or has " in error
        assert [path.name for path in Path("out").iterdir()] == [name]
        assert len(refine(capsys, "--overlay", "--overwrite")[0]) == 4
        assert refine(capsys, "--overlay")[0] == []

    def test_nor_are_results_that_somebody_has_edited(self, capsys):
        refine(capsys)
        Path("out", NAMES[0]).write_text("edited")
        Path("out", NAMES[3]).write_text("edited")
        error = refine(capsys, "--spatial", "2", code=2)[1]
        assert "and 1 other file: they were not written by" in error
        assert Path("out", NAMES[0]).read_text() == "edited"

    def test_pictures_of_an_earlier_run_beside_new_labels_are_told(self, capsys):
        refine(capsys, "--side-by-side", "--overlay")
        error = refine(capsys, "--spatial", "2", "--overlay")[1]
        name = NAMES[0].replace(".png", "_side_by_side.png")
        assert f"4 files of an earlier run will lie beside new labels, such as {name}" in error
        assert "add --side-by-side to make it anew" in error
        assert "earlier run" not in refine(capsys, "--spatial", "2", "--overlay")[1]
        Path("out", name).write_text("mine now")
        assert "3 files of an earlier run" in refine(capsys, "--spatial", "3", "--overlay")[1]

    def test_nor_one_that_appears_meanwhile(self, capsys, monkeypatch):
        plan = folder_command.plan

        def plan_and_lose(*arguments):
            states = plan(*arguments)
            Path("out", NAMES[1]).write_text("precious")
            return states

        monkeypatch.setattr(folder_command, "plan", plan_and_lose)
        found, error = refine(capsys, code=1)
        assert len(found) == 3
        assert f"{NAMES[1]}: it exists already" in error
        assert Path("out", NAMES[1]).read_text() == "precious"

    def test_a_straggler_of_a_killed_run_is_not_foreign(self, capsys, monkeypatch):
        Path("out").mkdir()
        with Manifest(Path("out")) as manifest:
            manifest.begin([NAMES[1]])
        plan = folder_command.plan

        def plan_and_find(*arguments):
            states = plan(*arguments)
            Path("out", NAMES[1]).write_text("by the worker of a run that was killed")
            return states

        monkeypatch.setattr(folder_command, "plan", plan_and_find)
        assert len(refine(capsys)[0]) == 4

    def test_inputs_are_protected_from_links(self, capsys):
        Path("out").mkdir()
        Path("out", NAMES[2]).hardlink_to("masks/scene-3.png")
        before = Path("masks/scene-3.png").read_bytes()
        _, error = refine(capsys, "--overwrite", code=2)
        assert "is read by this command, as masks/scene-3.png" in error
        Path("out", NAMES[2]).unlink()
        DenseCRF(3).save("model")
        Path("out", NAMES[2]).symlink_to("../model")
        error = refine(capsys, "--overwrite", "--model", "model", code=2)[1]
        assert "is read by this command, as model" in error
        assert Path("masks/scene-3.png").read_bytes() == before

    @pytest.mark.parametrize("folder", ["photos", "masks", "link"])
    def test_results_do_not_get_among_the_inputs(self, capsys, folder):
        Path("link").symlink_to("photos")
        _, error = refine(capsys, "-o", folder, code=2)
        assert f"this command looks for them in {folder}; name another folder with -o" in error
        assert len(list(Path("photos").iterdir())) == 4


class TestManifest:
    def test_the_lines_are_as_documented(self, capsys):
        refine(capsys, "--overlay")
        begun, *finished = lines()
        files = [[name, name.replace(".png", "_overlay.png")] for name in NAMES]
        assert begun == {"begun": [name for names in files for name in names]}
        for line, names, number in zip(finished, files, range(4), strict=True):
            assert line.keys() == {"done", "files", "inputs", "settings"}
            assert line["done"] == names[0]
            inputs = [f"photos/scene-{number}.png", f"masks/scene-{number}.png"]
            assert line["inputs"] == [[path, *fingerprint(path)] for path in inputs]
            assert line["files"] == [[name, *fingerprint(Path("out", name))] for name in names]

    @pytest.mark.parametrize("n_bytes", [1, 2, 100])
    def test_a_torn_line_costs_one_image(self, capsys, n_bytes):
        refine(capsys)
        path = Path("out", MANIFEST)
        path.write_bytes(path.read_bytes()[:-n_bytes])
        assert refine(capsys)[0] == ([] if n_bytes == 1 else ["scene-3"])
        assert refine(capsys)[0] == []

    def test_nonsense_is_passed_over(self, capsys):
        refine(capsys)
        path = Path("out", MANIFEST)
        nonsense = [b"[]", b"7", b'{"files":7}', b'{"files":[["scene-0.png",1]]}', b"\xff",
                    b'{"begun":[3]}', b'{"files":[["../photos/scene-0.png",1,2,"x"]]}', b"{" * 9999,
                    b'{"begun":["../scene"]}', b'{"inputs":[1]}', b"x" * 3_000_000]
        path.write_bytes(b"\n".join(nonsense) + b"\n" + path.read_bytes() + b"\n".join(nonsense))
        assert refine(capsys)[0] == []

    def test_what_follows_a_torn_line_is_whole(self):
        Path("out").mkdir()
        Path("out", MANIFEST).write_text('{"begun":["a')
        with Manifest(Path("out")) as manifest:
            manifest.begin(["b"])
        with History(Path("out")) as history:
            assert history.owns("b")
            assert not history.owns("a")

    def test_what_is_begun_is_on_the_disk_first(self, monkeypatch):
        Path("out").mkdir()
        kept = []
        monkeypatch.setattr(
            os, "fsync", lambda file: kept.append((os.fstat(file).st_ino, len(lines())))
        )
        with Manifest(Path("out")) as manifest:
            manifest.begin(["a", "b"])
        assert kept == [(Path("out", MANIFEST).stat().st_ino, 1)]

    def test_no_name_leads_out_of_the_folder(self):
        Path("out").mkdir()
        Path("out/a").touch()
        entry = ["a", *fingerprint("out/a")]
        line = {"done": "a", "files": [entry], "inputs": [], "settings": "s"}
        for names, expected in (([], ["a"]), (["../masks/scene-0.png"], []), (["/dev/zero"], [])):
            line["files"] = [entry, *([name, *fingerprint("out/a")] for name in names)]
            Path("out", MANIFEST).write_text(json.dumps(line) + "\n")
            with History(Path("out")) as history:
                assert history.files_of("a", [], "s") == expected
                assert history.owns("a") == bool(expected)

    def test_a_result_of_fewer_or_more_inputs_is_another(self):
        Path("out").mkdir()
        Path("out/a").touch()
        photo, mask = "photos/scene-0.png", "masks/scene-0.png"
        with Manifest(Path("out")) as manifest:
            manifest.finish([Path("out/a")], [(Path(photo), fingerprint(photo))], "s")
        with History(Path("out")) as history:
            assert history.files_of("a", [photo], "s") == ["a"]
            for inputs in ([], [mask], [photo, mask]):
                assert history.files_of("a", inputs, "s") == []

    def test_several_writers(self):
        Path("out").mkdir()
        files = [Path("out", name) for name in "abcd"]
        for path in files:
            path.write_text(path.name)
        with Manifest(Path("out")) as first, Manifest(Path("out")) as second:
            for number, path in enumerate(files):
                writer = (first, second)[number % 2]
                writer.begin([path.name, "never"])
                writer.finish([path], [], "settings")
        with History(Path("out")) as history:
            assert all(history.files_of(path.name, [], "settings") == [path.name] for path in files)
            assert history.owns("never")
            assert not history.owns("other")
            assert history.files_of("never", [], "settings") == []

    def test_a_pipe_is_no_manifest(self, capsys):
        Path("out").mkdir()
        Path("out", NAMES[0]).touch()
        os.mkfifo(Path("out", MANIFEST))
        assert "not a regular file" in refine(capsys, code=2)[1]

    def test_a_manifest_without_end_is_not_read(self, capsys):
        Path("out").mkdir()
        with Path("out", MANIFEST).open("wb") as stream:
            stream.truncate(2**32 + 1)
        assert "expected at most 4 GiB in the log" in refine(capsys, code=2)[1]

    def test_results_without_their_line_are_made_again(self, capsys, monkeypatch):
        finish = Manifest.finish

        def stop_at_the_second(manifest, files, inputs, settings):
            if files[0].name == NAMES[1]:
                raise KeyboardInterrupt
            finish(manifest, files, inputs, settings)

        with monkeypatch.context() as patch:
            patch.setattr(Manifest, "finish", stop_at_the_second)
            assert refine(capsys, code=130)[0] == ["scene-0"]
        assert Path("out", NAMES[1]).exists()
        assert refine(capsys)[0] == ["scene-1", "scene-2", "scene-3"]


class TestSingleLabels:
    def test_they_are_written_as_they_are_and_remembered(self, capsys):
        for number, label in (("1", 0), ("3", 2)):
            path = Path("masks", f"scene-{number}.png")
            with Image.open(path) as picture:
                Image.new("L", picture.size, label).save(path)
        assert main([*COMMAND]) == 0
        said = capsys.readouterr()
        assert said.out.startswith(
            "out: 4 of 4 images refined, 2 of 4 label maps hold a single label and were written "
            "as they were, "
        )
        assert said.err == ""
        with Image.open("out/scene-3.png") as picture:
            assert (np.asarray(picture) == 2).all()
        assert sorted(done_names()) == list(NAMES)
        assert refine(capsys)[0] == []


class TestJobs:
    def test_several_at_a_time_give_the_same(self, capsys):
        Path("masks/scene-2.png").write_bytes(b"nonsense")
        results = []
        for jobs, folder in (("1", "out"), ("2", "other")):
            words = ["--json", "--overlay", "--marginals", "--jobs", jobs, "-o", folder]
            assert main([*COMMAND, *words]) == 1
            said = capsys.readouterr()
            assert "3 of 4 images refined, 1 failed" in said.err
            records = json.loads(said.out)
            for record in records:
                record.pop("seconds", None)
            results.append((
                json.dumps(records).replace('"other/', '"out/'),
                {path.name: path.read_bytes() for path in Path(folder).glob("[!.]*")},
            ))
        assert results[0] == results[1]
        assert len(results[0][1]) == 9
        assert main([*COMMAND, "--jobs", "2", "--overlay", "--marginals", "-o", "other"]) == 1
        said = capsys.readouterr().out
        assert said.startswith("other: 4 images: 3 done before (--overwrite does them again), 1 fa")

    def test_each_has_its_share_of_the_threads(self, monkeypatch):
        monkeypatch.setattr(folder_command, "usable_cores", lambda: 7)
        seen = []
        monkeypatch.setattr(
            folder_command, "_refined",
            lambda paired, states, recipe, manifest: seen.append(recipe.keywords) or iter(()))
        for words in (["--jobs", "2"], ["--jobs", "9"], ["--jobs", "2", "--threads", "5"]):
            assert main([*COMMAND[:-2], *words]) == 0
        assert [keywords["threads"] for keywords in seen] == [3, 1, 5]

    def test_a_worker_that_is_killed_costs_one_answer(self):
        with Workers(1, functools.partial, divmod_or_die) as workers:
            answers = [answer for _, answer in workers.answers([7, 0, 9])]
            assert answers[0].result() == (3, 1)
            with pytest.raises(WorkerLost):
                answers[1].result()
            assert answers[2].result() == (4, 1)

    def test_what_workers_print_stays_out_of_the_report(self, capfd):
        with Workers(1, functools.partial, write_to) as workers:
            [(_, n_bytes)] = workers.answers([1])
            assert n_bytes.result() == 5
        said = capfd.readouterr()
        assert (said.out, said.err) == ("", "hello")

    @pytest.mark.skipif(os.name == "nt", reason="needs named pipes")
    def test_workers_tidy_up_when_the_run_ends(self):
        os.mkfifo("pipe")
        with Workers(1, functools.partial, wait_tidily) as workers:
            asked = threading.Thread(target=lambda: list(workers.answers(["pipe"])))
            asked.start()
            assert Path("pipe").read_text() == "at work"
        asked.join()
        assert Path("tidy").exists()

    @pytest.mark.skipif(os.name == "nt", reason="needs masks of signals")
    def test_a_worker_is_ended_by_one_thread_at_a_time(self):
        """Two that close a pipe at once may close what somebody else has opened since."""
        both, met = threading.Barrier(2), []

        class Pipe:
            def close(self):
                with suppress(threading.BrokenBarrierError):
                    both.wait(0.2)
                    met.append(self)

        with Workers(1, functools.partial, divmod_or_die) as workers:
            next(workers.answers([4]))
            [worker] = workers._all
            worker._pipe.close()
            worker._pipe = Pipe()
            worker.stop()
            threads = [threading.Thread(target=worker.wait) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not met

    def test_ctrl_c_in_a_terminal_reaches_the_command_alone(self):
        """Which holds while a worker starts, because the mask is that of its beginning."""
        with Workers(1, functools.partial, blocked_signals) as workers:
            [(_, blocked)] = workers.answers([()])
            assert signal.SIGINT in blocked.result()
        assert signal.SIGINT not in blocked_signals(())

    def test_the_image_of_a_killed_worker_is_reported(self, capsys, monkeypatch):
        monkeypatch.setattr(Workers, "_ask", die_at_the_second)
        found, error = refine(capsys, "--jobs", "2", code=1)
        assert len(found) == 3
        assert "expected a process to refine photos/scene-1.png, but it was killed" in error

    def test_processes_that_do_not_start(self, capsys, monkeypatch):
        monkeypatch.setattr(folder_command, "refiner", os._exit)
        assert "use --jobs 1" in refine(capsys, "--jobs", "2", code=2)[1]


def write_to(file):
    return os.write(file, b"hello")


def divmod_or_die(number):
    return divmod(number, 2) if number else os._exit(3)


def blocked_signals(more):
    return signal.pthread_sigmask(signal.SIG_BLOCK, more)


def wait_tidily(pipe):
    try:
        Path(pipe).write_text("at work")
        signal.pause()
    finally:
        Path("tidy").touch()


def die_at_the_second(workers, task, ask=Workers._ask):
    if task[0].image.stem == "scene-1":
        raise WorkerLost
    return ask(workers, task)


INTERRUPTIBLE = """
import signal, sys
from crfield.cli import main
from crfield.cli.refine_folder import _Report

add, records = _Report.add, []

def wait_at_the_second(self, record):
    add(self, record)
    records.append(record)
    if len(records) == 2:
        print("waiting", flush=True)
        signal.pause()

_Report.add = wait_at_the_second
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.name == "nt", reason="needs signals between processes")
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_keeps_what_is_done(capsys, jobs):
    program = [sys.executable, "-c", INTERRUPTIBLE, *COMMAND, "--jobs", jobs]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.stdout.readline() != "waiting\n":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        # Workers have the other end of this pipe: it ends with the last of them.
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == "crfield: interrupted; the same command goes on with what is left.\n"
    finished = done_names()
    assert finished[:2] == NAMES[:2] if jobs == "1" else set(NAMES[:2]) <= set(finished)
    kept = {path.name: path.read_bytes() for path in Path("out").glob("*.png")}
    assert {path.name for path in Path("out").glob(".*")} == {MANIFEST}
    assert refine(capsys)[0] == [name[:7] for name in NAMES if name not in finished]
    assert kept.items() <= {
        path.name: path.read_bytes() for path in Path("out").glob("*.png")}.items()


@pytest.mark.parametrize("kind", ["labels", "masks"])
def test_the_work_per_image_does_not_grow_with_their_number(capsys, monkeypatch, kind):
    """Calls of the file system, first and on a rerun, for 2, 4 and 8 images; of maps as many are
    looked at beforehand for any number.
    """
    refine(capsys)  # whatever is imported on first use
    counts = []
    scenes = datasets.synthetic_scenes(8, size=(8, 9), n_labels=3, seed=1)
    write_photos(scenes)
    if kind == "masks":
        write_masks(scenes)
    monkeypatch.setattr(masks, "_LOOKED_AT", 2)
    looked_at = []
    monkeypatch.setattr(label_maps, "read_labels", counted(label_maps.read_labels, looked_at))
    for n in (2, 4, 8):
        paths = [f"photos/scene-{number}.png" for number in range(n)]
        command = ["refine", *paths, "--labels", "masks", "-o", f"out{n}", "--max-iter", "1",
                   "--threads", "1"]
        for _ in range(2):
            calls = []
            looked_at.clear()
            with monkeypatch.context() as patch:
                for name in ("stat", "lstat", "open", "readlink", "scandir"):
                    patch.setattr(os, name, counted(getattr(os, name), calls))
                refine(capsys, command=command)
            counts.append(len(calls))
            assert len(looked_at) == {"labels": 1, "masks": 2}[kind]
    first, rerun = counts[::2], counts[1::2]
    for two, four, eight in (first, rerun):
        assert eight - four == 2 * (four - two) > 0


def counted(function, calls):
    def call(*arguments, **options):
        calls.append(function)
        return function(*arguments, **options)

    return call


def test_the_report_keeps_no_records():
    none = Pairing([], {}, [], True, Path("out"), None, True, [])
    with open(os.devnull, "w") as stream, redirect_stdout(stream):
        tracemalloc.start()
        try:
            with folder_command._Report(none, True, None) as report:
                for number in range(500):
                    report.add({"input": "photo.png" * 200 + str(number)})
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 500_000


def test_names_of_files_and_paths_agree():
    for name in ("a.png", "a.b.tif", "a.nii.gz", "A.NII.GZ", "a.nii", "a", ".png", "a.tar.gz"):
        assert split_name(name) == (file_stem(Path(name)), file_suffix(Path(name)))
    assert possible_results(("x/a.png", "y/a.npy"), "_refined") == ["a_refined.png"]
    assert "a_refined.nii.gz" in possible_results(("x/a.png", "y/a.nii"), "_refined")
    assert "a.tif" in possible_results(("x/a.tif", "y/a.png"), "")


def test_pairs_are_in_the_order_of_names():
    paired = pair_files([Path("photos")], Path("masks"), (".png",), Path("out"))
    assert paired.pairs == [
        (f"photos/scene-{number}.png", f"masks/scene-{number}.png") for number in range(4)]
