"""Whole inferences and their parts: against pydensecrf, by algorithm, exactly, and two at once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks.cases import (
    ITERATIONS,
    Case,
    Scale,
    check_case,
    mean_difference,
    photo_case,
    require_agreement,
    volume_case,
)
from benchmarks.measure import Candidates, Section, fastest, milliseconds, ratio, times
from crfield import InferenceResult
from crfield._core.resources import usable_cores
from experiments.common import HAS_PYDENSECRF

ONE, ALL, THEIRS = "crfield, 1 thread", "crfield, all threads", "pydensecrf"


def whole_inference(scale: Scale) -> Section:
    """From an image and costs to marginals, everything included."""
    section = Section("inference", f"Whole inference, {usable_cores()} cores")
    cases = [photo_case(scale.photo, count) for count in scale.label_counts]
    cases.append(volume_case(scale.volume))
    rows, figures = [], []
    for case in cases:
        difference = section.accepts(partial(check_case, case, thread_counts=both_counts()))
        if difference is None:
            continue
        seconds = fastest(_both_libraries(case, ITERATIONS), scale.repeats)
        theirs = seconds.get(THEIRS)
        rows.append([
            case.name, milliseconds(seconds[ONE]), milliseconds(seconds[ALL]),
            "" if theirs is None else milliseconds(theirs), times(ratio(theirs, seconds[ONE])),
            times(ratio(theirs, seconds[ALL])), f"{difference:.1e}",
        ])
        figures.append({"case": case.name, "seconds": seconds, "mean_difference": difference})
    reference = "pydensecrf" if HAS_PYDENSECRF else "exact (part)"
    section.add_table(
        ["case", "1 thread, ms", "all threads, ms", "pydensecrf, ms", "speed, 1 thread",
         "speed, all", f"difference from {reference}"],
        rows,
    )
    section.data["cases"] = figures
    return section


def build_and_iterations(scale: Scale) -> Section:
    """What happens once, the time of no iteration, and what each iteration adds to it."""
    section = Section("parts", "Build and iterations")
    rows, figures = [], []
    for count in (scale.few_labels, scale.many_labels):
        case = photo_case(scale.photo, count)
        if section.accepts(partial(check_case, case, thread_counts=both_counts())) is None:
            continue
        candidates: Candidates = {}
        for n_iter in (0, ITERATIONS):
            for name, run in _both_libraries(case, n_iter).items():
                candidates[f"{name}, {n_iter}"] = run
        seconds = fastest(candidates, scale.repeats)
        for name in _both_libraries(case, 0):
            build, whole = seconds[f"{name}, 0"], seconds[f"{name}, {ITERATIONS}"]
            each = (whole - build) / ITERATIONS
            rows.append([
                f"{case.name}: {name}", milliseconds(build), milliseconds(whole),
                milliseconds(each),
            ])
            figures.append({
                "case": case.name, "who": name, "build": build, "whole": whole,
                "per_iteration": each,
            })
    section.add_table(
        ["", "no iteration, ms", f"{ITERATIONS} iterations, ms", "an iteration, ms"], rows
    )
    section.data["cases"] = figures
    return section


def cccp_against_concave(scale: Scale) -> Section:
    """The two convergent algorithms on Potts terms."""
    section = Section("algorithms", "cccp against concave, Potts terms, 1 thread")
    case = photo_case(scale.photo, scale.many_labels)
    names = ("concave", "cccp")
    if any(section.accepts(partial(check_case, case, name)) is None for name in names):
        return section
    candidates: Candidates = {name: partial(case.infer, algorithm=name) for name in names}
    seconds = fastest(candidates, scale.repeats)
    share = ratio(seconds["cccp"], seconds["concave"])
    section.add_table(
        ["case", "concave, ms", "cccp, ms", "cccp / concave"],
        [[case.name, *(milliseconds(seconds[name]) for name in names), times(share)]],
    )
    section.data.update(case=case.name, seconds=seconds)
    return section


def exact_against_lattice(scale: Scale) -> Section:
    """What the lattice saves and what it costs in accuracy, where the exact sum is possible."""
    section = Section("exact", "Exact filter against the lattice, 1 thread")
    rows, figures = [], []
    for count in (scale.few_labels, scale.many_labels):
        case = photo_case(scale.photo, count).small_copy()
        found, exact = (case.infer(filter=method).marginals for method in ("lattice", "exact"))
        difference = section.accepts(partial(
            require_agreement, f"{case.name}, lattice", "the exact filter's",
            mean_difference(found, exact),
        ))
        if difference is None:
            continue
        candidates: Candidates = {
            method: partial(case.infer, filter=method) for method in ("lattice", "exact")
        }
        seconds = fastest(candidates, scale.repeats)
        rows.append([
            case.name, milliseconds(seconds["lattice"]), milliseconds(seconds["exact"]),
            times(ratio(seconds["exact"], seconds["lattice"])), f"{difference:.1e}",
        ])
        figures.append({"case": case.name, "seconds": seconds, "mean_difference": difference})
    section.add_table(
        ["case", "lattice, ms", "exact, ms", "exact / lattice", "mean difference"], rows
    )
    section.data["cases"] = figures
    return section


def two_images_at_once(scale: Scale) -> Section:
    """Whether Python threads with one native thread each use two cores."""
    section = Section("throughput", "Two images twice: two Python threads against one")
    pair = [photo_case(scale.photo, scale.many_labels, name) for name in ("coffee", "astronaut")]
    if any(section.accepts(partial(check_case, case)) is None for case in pair):
        return section

    def infer_all(cases: Sequence[Case]) -> list[InferenceResult]:
        return [case.infer() for case in cases]

    # Each thread takes both, in opposite orders: one image may take longer than the other.
    shares = [pair, pair[::-1]]
    with ThreadPoolExecutor(len(shares)) as pool:
        candidates: Candidates = {
            "one after the other": lambda: [infer_all(share) for share in shares],
            "at once": lambda: list(pool.map(infer_all, shares)),
        }
        seconds = fastest(candidates, scale.repeats)
    gain = ratio(seconds["one after the other"], seconds["at once"])
    section.add_table(
        ["case", *(f"{name}, ms" for name in seconds), "gain"],
        [[pair[0].name, *map(milliseconds, seconds.values()), times(gain)]],
    )
    section.data.update(case=pair[0].name, seconds=seconds, cores=usable_cores())
    return section


def both_counts() -> tuple[int, int]:
    """One thread and all of them."""
    return 1, usable_cores()


def _both_libraries(case: Case, n_iter: int) -> Candidates:
    candidates: Candidates = {
        ONE: partial(case.infer, 1, n_iter=n_iter),
        ALL: partial(case.infer, usable_cores(), n_iter=n_iter),
    }
    if HAS_PYDENSECRF:
        candidates[THEIRS] = partial(case.infer_pydensecrf, n_iter)
    return candidates
