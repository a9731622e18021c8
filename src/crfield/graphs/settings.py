"""How messages are passed: what the verbs of `crfield.graphs` are asked for, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from crfield._core.validate import (
    InputError,
    as_choice,
    as_count,
    as_damping,
    as_not_negative,
    as_positive_number,
    as_scalar,
)

if TYPE_CHECKING:
    from crfield.graphs.results import Result

SCHEDULES = ("auto", "exact", "flooding", "sequential", "residual")
# Costs divided by less, and logarithms times more, could leave the range of numbers.
LEAST_TEMPERATURE, LARGEST_TEMPERATURE = 1e-6, 1e100


@dataclass(frozen=True, kw_only=True)
class Propagation:
    """How belief propagation on loops is done as a part of something larger, see `infer`.

    max_iter : most iterations.
    damping : share of an old message, as a cost, that stays, within [0, 1).
    tol : the largest change of a message to stop at.
    convex : whether log Z of graphs with loops is the convex upper bound of reweighted propagation,
        so that learning has one optimum and cannot run away; else Bethe's approximation.
    """

    max_iter: int = 1000
    damping: float = 0.2
    tol: float = 1e-4
    convex: bool = True

    def __post_init__(self) -> None:
        as_count(self.max_iter, "max_iter")
        as_damping(self.damping)
        as_positive_number(self.tol, "tol")


class InferSettings(NamedTuple):
    """Checked settings of `infer`; None is for an engine's own choice."""

    temperature: float
    schedule: str
    max_iter: int | None
    damping: float
    tol: float | None
    convex: bool
    init: Result | None
    threads: int | None

    def require(self, schedules: tuple[str, str], problem: str) -> None:
        """Refuse schedules that an engine does not have."""
        if self.schedule not in schedules:
            first, second = schedules
            raise InputError(
                f"schedule must be {first!r} or {second!r} for {problem}, got {self.schedule!r}; "
                "leave it out."
            )


def as_settings(
    temperature: Any, schedule: Any, max_iter: Any, damping: Any, tol: Any, convex: Any,
    init: Result | None, threads: int | None,
) -> InferSettings:
    """InferSettings from the arguments of `infer`."""
    least = None
    if tol is not None:
        least = as_not_negative(tol, "tol", "use 0 to do all iterations")
    return InferSettings(
        as_temperature(temperature), as_choice(schedule, "schedule", SCHEDULES),
        None if max_iter is None else as_count(max_iter, "max_iter"), as_damping(damping), least,
        bool(convex), init, threads,
    )


def as_temperature(
    temperature: Any, *, may_be_zero: bool = True, most: float = LARGEST_TEMPERATURE
) -> float:
    """A positive number, at most `most`, or 0 where that means something."""
    value = as_scalar(temperature, "temperature")
    if not (value >= LEAST_TEMPERATURE or (may_be_zero and value == 0.0)):
        least, remedy = f"at least {LEAST_TEMPERATURE:g}", "use best for 0"
        if may_be_zero:
            least, remedy = f"0 or {least}", "use 0 for the labels of least energy"
        raise InputError(f"temperature must be {least}, got {value:g}; {remedy}.")
    if value > most:
        raise InputError(
            f"temperature must not exceed {most:g}, got {value:g}; at 1e10 all "
            "labels are as good as equal already."
        )
    return value


def require_sum_or_max(temperature: float, problem: str) -> None:
    """Refuse temperatures between and above those of sum-product and max-product."""
    if temperature not in (0.0, 1.0):
        raise InputError(
            f"temperature must be 1 or 0 for {problem}, got {temperature:g}; use 1 for marginals "
            "and 0 for the labels of least energy."
        )
