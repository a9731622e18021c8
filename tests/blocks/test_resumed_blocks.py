"""Runs of `refine_blocks` that were cut short go on to the same bytes, and leave nothing hidden."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import crfield
from crfield import DenseCRF, Inference, Pairwise, Potts, Spatial
from crfield._core import locks
from crfield.blocks import record as records
from crfield.cli import main
from refusal import refusal

RNG = np.random.default_rng(5)
SHARED = {"spatial": 1.5, "bilateral": (3, 20), "inference": Inference(max_iter=3, tol=0)}


def case(name):
    """Image, segmentation and options of a small problem in several blocks."""
    rng = np.random.default_rng(1)
    if name == "volume":
        image, labels = rng.random((6, 9, 10)).astype(np.float32), rng.integers(0, 3, (6, 9, 10))
        return image, labels, {**SHARED, "block": (6, 5, 5), "overlap": 2, "spacing": (2, 1, 1)}
    image = rng.integers(0, 256, (20, 33, 3), dtype=np.uint8)
    labels = rng.integers(0, 3, (20, 33)).astype(np.uint8)
    options = {**SHARED, "block": 11, "overlap": 4}
    if name == "mask":
        mask = rng.random(labels.shape) < 0.7
        mask[:10, :16] = False
        options["mask"] = mask
    if name == "bound":
        options["bound"] = True
    if name == "probabilities":
        return image, rng.dirichlet([1, 1, 1, 1], labels.shape).astype(np.float32), options
    return image, labels, options


CASES = ["labels", "probabilities", "bound", "mask", "volume"]


class Ended(Exception):
    """Ends a run."""


def end_after(number):
    def callback(done, total):
        if done == number:
            raise Ended
    return callback


def counted(seen):
    return lambda done, total: seen.append(done)


def outcome(result):
    """All that a run tells besides the arrays."""
    return asdict(result.seams), result.status, result.n_blocks, result.label_ids.tolist()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("soft", [False, True])
def test_a_run_ended_after_any_block_goes_on_to_the_same_bytes(name, soft, tmp_path):
    image, given, options = case(name)
    files = {"out": tmp_path / "labels.npy"}
    files |= {"marginals": tmp_path / "soft.npy"} if soft else {}
    whole = crfield.refine_blocks(image, given, **files, **options)
    expected = {path: path.read_bytes() for path in files.values()}
    assert whole.n_blocks >= 4
    for number in range(1, whole.n_blocks + 1):
        for path in files.values():
            path.unlink()
        with pytest.raises(Ended) as ended:
            crfield.refine_blocks(image, given, callback=end_after(number), **files, **options)
        assert f"{number} of {whole.n_blocks} blocks are finished" in ended.value.__notes__[0]
        assert all(path.name.startswith(".") for path in tmp_path.iterdir())
        seen = []
        found = crfield.refine_blocks(image, given, callback=counted(seen), **files, **options)
        assert seen == list(range(number + 1, whole.n_blocks + 1))
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == expected
        assert outcome(found) == outcome(whole)


@pytest.mark.parametrize("number", [1, 3])
def test_a_killed_process_goes_on(number, tmp_path):
    image, given, options = case("probabilities")
    np.save(tmp_path / "image.npy", image)
    np.save(tmp_path / "given.npy", given)
    script = (
        "import os, signal, sys, numpy as np, crfield\n"
        "def kill(done, total):\n"
        f"    if done == {number}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "image, given = (np.load(f'{n}.npy', mmap_mode='r') for n in ('image', 'given'))\n"
        "crfield.refine_blocks(image, given, block=11, overlap=4, spatial=1.5, bilateral=(3, 20), "
        "inference=crfield.Inference(max_iter=3, tol=0), out='out.npy', callback=kill)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out.npy").exists()
    seen = []
    crfield.refine_blocks(
        image, given, out=tmp_path / "out.npy", callback=counted(seen), **options
    )
    assert seen[0] == number + 1
    expected = crfield.refine_blocks(image, given, **options).labels
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given.npy", "image.npy", "out.npy"]


def cut_short(folder, number=2, name="probabilities", **more):
    """A run that was ended after a block, and what it was given."""
    image, given, options = case(name)
    options |= {"out": folder / "labels.npy", **more}
    with pytest.raises(Ended):
        crfield.refine_blocks(image, given, callback=end_after(number), **options)
    return image, given, options


def go_on(image, given, options):
    """The blocks that had to be done, after a check against a run in memory."""
    seen = []
    found = crfield.refine_blocks(image, given, **{**options, "callback": counted(seen)})
    fresh = crfield.refine_blocks(image, given, **{**options, "out": None, "marginals": True})
    assert np.array_equal(found.labels, fresh.labels)
    if found.marginals is not None:
        assert np.array_equal(found.marginals, fresh.marginals)
    assert outcome(found) == outcome(fresh)
    return seen


@pytest.mark.parametrize("change", [
    {"block": 10}, {"overlap": 5}, {"spatial": 1.4}, {"inference": Inference(max_iter=4, tol=0)},
    {"bound": True}, {"spacing": 2.0}, {"bilateral_weight": 3.5},
    {"model": DenseCRF(4, [Pairwise(Spatial(2), Potts(1))])}, {"mask": RNG.random((20, 33)) < 0.5},
])
def test_another_run_starts_anew(change, tmp_path):
    image, given, options = cut_short(tmp_path)
    seen = go_on(image, given, {**options, **change})
    assert seen[0] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["labels.npy"]


def test_the_unfinished_files_of_another_run_are_removed(tmp_path):
    image, given, options = cut_short(tmp_path, marginals=tmp_path / "soft.npy")
    assert (tmp_path / ".soft.npy.partial").exists()
    assert go_on(image, given, {**options, "marginals": None})[0] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["labels.npy"]


def test_blocks_that_saw_other_pixels_are_done_again(tmp_path):
    image, given, options = cut_short(tmp_path, 4)
    image[:, 21] += 1  # beyond the core of the first block and its surroundings
    assert go_on(image, given, options)[0] == 2


@pytest.mark.parametrize("file", ["labels", "soft"])
def test_labels_are_made_again_from_marginals(file, tmp_path):
    image, given, options = cut_short(tmp_path, 6, marginals=tmp_path / "soft.npy")
    (tmp_path / f".{file}.npy.partial").unlink()  # as if it had got its name already
    assert go_on(image, given, options) == ([] if file == "labels" else [1, 2, 3, 4, 5, 6])


def test_labels_in_memory_are_made_again_from_marginals(tmp_path):
    image, given, options = cut_short(tmp_path, 3, out=None, marginals=tmp_path / "soft.npy")
    assert go_on(image, given, options) == [4, 5, 6]


def test_marginals_in_memory_cannot_go_on(tmp_path):
    image, given, options = case("labels")
    options |= {"out": tmp_path / "labels.npy", "marginals": True}
    with pytest.raises(Ended) as ended:
        crfield.refine_blocks(image, given, callback=end_after(3), **options)
    assert not getattr(ended.value, "__notes__", ())
    assert not list(tmp_path.iterdir())


def test_a_stop_by_the_callback_forgets_what_was_kept(tmp_path):
    image, given, options = cut_short(tmp_path)
    crfield.refine_blocks(image, given, callback=lambda done, total: done == 4, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_torn_record_counts_up_to_the_tear(kept, tmp_path):
    image, given, options = cut_short(tmp_path, 3)
    path = tmp_path / ".labels.npy.blocks"
    whole = path.read_bytes()
    ends = [whole.index(b"\n") + 1]
    while (at := whole.find(b'{"seen"', ends[-1] + 1)) > 0:
        ends.append(at)
    assert len(ends) == 3
    size = (*ends[1:], len(whole))[kept]
    path.write_bytes(whole[: size - 1])
    assert go_on(image, given, options)[0] == kept + 1


@pytest.mark.parametrize("content", [
    b"", b"\n", b"[" * 5000, b"{}\n{}\n", bytes(100), b'{"format": "crfield.blocks", "files": 3}\n',
    b'{"format": "crfield.blocks", "files": ["\\u0000", "../../etc/passwd", 3]}\n',
])
def test_a_record_that_is_none_starts_anew(content, tmp_path):
    image, given, options = cut_short(tmp_path)
    (tmp_path / ".labels.npy.blocks").write_bytes(content)
    assert go_on(image, given, options)[0] == 1


def test_entries_under_the_first_line_of_another_run_are_not_read(tmp_path):
    partial, path = tmp_path / ".labels.npy.partial", tmp_path / ".labels.npy.blocks"
    cut_short(tmp_path)
    labels, entries = partial.read_bytes(), path.read_bytes().partition(b"\n")[2]
    image, given, options = cut_short(tmp_path, spatial=1.4)
    partial.write_bytes(labels)
    path.write_bytes(path.read_bytes().partition(b"\n")[0] + b"\n" + entries)
    assert go_on(image, given, options)[0] == 1


def test_entries_that_promise_too_much_are_not_read(tmp_path):
    image, given, options = cut_short(tmp_path)
    path = tmp_path / ".labels.npy.blocks"
    header = path.read_bytes().split(b"\n")[0]
    for layers in ("[[0, 99999999999, 99999999999]]", "[[0, -1, 3]]", "[3]", "null"):
        path.write_bytes(header + b'\n{"layers": ' + layers.encode() + b"}\n" + bytes(50))
        with pytest.raises(Ended):
            crfield.refine_blocks(image, given, callback=end_after(1), **options)


@pytest.mark.parametrize("size", [0, 50, 128, 300, 10_000])
def test_a_partial_file_of_another_size_is_not_trusted(size, tmp_path):
    image, given, options = cut_short(tmp_path, 4)
    os.truncate(tmp_path / ".labels.npy.partial", size)
    done = go_on(image, given, options)
    assert done[0] == (5 if size == 10_000 else 1)
    assert [path.name for path in tmp_path.iterdir()] == ["labels.npy"]


def test_altered_results_are_done_again(tmp_path):
    image, given, options = cut_short(tmp_path, 4)
    stored = np.load(tmp_path / ".labels.npy.partial", mmap_mode="r+")
    stored[0, 15] ^= 1  # in the second block
    del stored
    assert go_on(image, given, options)[0] == 2


def test_data_come_before_their_entry(tmp_path, monkeypatch):
    order = []
    append, sync = records.Record.append, crfield.blocks.parts.Target.sync
    for owner, name, real in (
        (records.Record, "append", append), (crfield.blocks.parts.Target, "sync", sync)
    ):
        def noted(self, *arguments, name=name, real=real):
            order.append(name)
            return real(self, *arguments)
        monkeypatch.setattr(owner, name, noted)
    image, given, options = case("labels")
    crfield.refine_blocks(image, given, out=tmp_path / "labels.npy", **options)
    assert order == ["sync", "append"] * 6 + ["sync"]


@pytest.mark.parametrize("name", ["out", "marginals"])
def test_a_second_run_is_told_and_changes_nothing(name, tmp_path):
    image, given, options = case("labels")
    files = {"out": tmp_path / "labels.npy", "marginals": tmp_path / "soft.npy"}
    told = []

    def second(done, total):
        if done == 2:
            mine = {"out": None, name: files[name]}
            told.append(refusal(crfield.refine_blocks, image, given, **mine, **options))

    found = crfield.refine_blocks(image, given, callback=second, **files, **options)
    assert "another run of crfield is writing" in told[0]
    assert str(files[name]) in told[0]
    whole = crfield.refine_blocks(image, given, marginals=True, **options)
    assert np.array_equal(found.labels, whole.labels)
    assert np.array_equal(found.marginals, whole.marginals)
    assert sorted(tmp_path.iterdir()) == sorted(files.values())


def test_a_file_renamed_meanwhile_is_not_written_to(tmp_path, monkeypatch):
    image, given, options = case("labels")
    hidden, out = tmp_path / ".labels.npy.partial", tmp_path / "labels.npy"
    hidden.write_bytes(b"of the run that ends just now")
    lock = locks._lock

    def rename_first(stream, path):
        if not out.exists() and os.path.samestat(os.fstat(stream), hidden.stat()):
            hidden.replace(out)
        lock(stream, path)

    monkeypatch.setattr(locks, "_lock", rename_first)
    with pytest.raises(Ended):
        crfield.refine_blocks(image, given, out=out, callback=end_after(1), **options)
    assert out.read_bytes() == b"of the run that ends just now"


def test_a_full_disk_keeps_what_is_finished(tmp_path, monkeypatch):
    image, given, options = case("labels")
    options |= {"out": tmp_path / "labels.npy"}
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(records.os, "fsync", full)
    message = refusal(crfield.refine_blocks, image, given, **options)
    assert "no space left on device; make room there; 2 of 6 blocks are finished" in message
    assert "run the same again to go on." in message
    assert go_on(image, given, options) == [4, 5, 6]  # the entry itself had been written


def test_wrong_pixels_in_a_later_block_do_not_cost_the_first_ones(tmp_path):
    image, given, options = case("probabilities")
    options |= {"out": tmp_path / "labels.npy"}
    good, given[15, 30] = given[15, 30].copy(), np.nan
    message = refusal(crfield.refine_blocks, image, given, **options)
    assert message.endswith("5 of 6 blocks are finished and kept; run the same again to go on.")
    given[15, 30] = good
    assert go_on(image, given, options) == [6]


def test_an_error_before_the_first_block_leaves_nothing_or_what_was_there(tmp_path):
    image, given, options = case("probabilities")
    bad = {**options, "out": tmp_path / "labels.npy", "marginals": tmp_path / "no" / "soft.npy"}
    assert "no such file" in refusal(crfield.refine_blocks, image, given, **bad)
    assert not list(tmp_path.iterdir())
    _, _, options = cut_short(tmp_path)
    wrong = np.zeros((3, 3), np.uint8)
    refusal(crfield.refine_blocks, image, given, **{**options, "marginals": wrong})
    assert go_on(image, given, options)[0] == 3


def test_an_interrupt_while_looking_at_what_is_there_keeps_it(tmp_path, monkeypatch):
    image, given, options = cut_short(tmp_path, 3)
    read = crfield.blocks.parts.Target.read

    def interrupt(self, part):
        raise KeyboardInterrupt

    monkeypatch.setattr(crfield.blocks.parts.Target, "read", interrupt)
    with pytest.raises(KeyboardInterrupt):
        crfield.refine_blocks(image, given, **options)
    monkeypatch.setattr(crfield.blocks.parts.Target, "read", read)
    assert go_on(image, given, options) == [4, 5, 6]


def test_nothing_is_promised_where_the_folder_is_gone(tmp_path):
    image, given, options = case("labels")
    folder = tmp_path / "gone"
    folder.mkdir()
    message = refusal(
        crfield.refine_blocks, image, given, out=folder / "labels.npy",
        callback=lambda done, total: shutil.rmtree(folder) if done == 2 else None, **options
    )
    assert "kept" not in message


def test_hidden_files_that_are_no_files_are_refused(tmp_path):
    image, given, options = case("labels")
    for name in (".labels.npy.partial", ".labels.npy.blocks"):
        for make in (os.mkfifo, lambda path: path.symlink_to(tmp_path / "elsewhere"), os.mkdir):
            make(tmp_path / name)
            message = refusal(
                crfield.refine_blocks, image, given, out=tmp_path / "labels.npy", **options
            )
            assert "cannot write" in message
            (tmp_path / name).rmdir() if make is os.mkdir else (tmp_path / name).unlink()
            assert not list(tmp_path.iterdir())


def test_long_names_have_room_for_hidden_ones(tmp_path):
    for name in ("n" * 251, "é" * 125 + "a"):
        image, given, options = cut_short(tmp_path, out=tmp_path / f"{name}.npy")
        assert go_on(image, given, options)[0] == 3


def test_the_command_goes_on_and_says_so(tmp_path, monkeypatch, capsys):
    image, given, _ = case("labels")
    monkeypatch.chdir(tmp_path)
    np.save("image.npy", image)
    np.save("labels.npy", given)
    command = ["refine", "image.npy", "--labels", "labels.npy", "--block", "11", "--overlap", "4",
               "-v"]
    assert main([*command, "-o", "whole.npy"]) == 0
    append = records.Record.append

    def interrupted(self, finished):
        append(self, finished)
        if self.n_finished == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(records.Record, "append", interrupted)
    capsys.readouterr()
    assert main([*command, "-o", "out.npy"]) == 130
    told = capsys.readouterr().err
    assert "crfield: 2 of 6 blocks are finished and kept; run the same again to go on." in told
    monkeypatch.setattr(records.Record, "append", append)
    assert main([*command, "-o", "out.npy"]) == 0
    assert "block 2 of 6" not in capsys.readouterr().err
    assert Path("out.npy").read_bytes() == Path("whole.npy").read_bytes()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("result", ["out", "marginals"])
@pytest.mark.parametrize("name", ["image", "labels"])
def test_no_result_replaces_the_file_of_an_input(tmp_path, name, result):
    image, labels, options = case("labels")
    given, link = {"image": image, "labels": labels}, tmp_path / "link.npy"
    np.save(tmp_path / "a.npy", given[name])
    link.symlink_to(tmp_path / "a.npy")
    before = (tmp_path / "a.npy").read_bytes()
    given[name] = np.load(tmp_path / "a.npy", mmap_mode="r")
    options |= {result: link}
    assert "must be no input" in refusal(crfield.refine_blocks, *given.values(), **options)
    assert (tmp_path / "a.npy").read_bytes() == before
