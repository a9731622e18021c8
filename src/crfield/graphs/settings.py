"""How messages are passed: what the verbs of `crfield.graphs` are asked for, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from crfield._core.validate import InputError, as_choice, as_count, as_damping, as_scalar

if TYPE_CHECKING:
    from crfield.graphs.results import Result

SCHEDULES = ("auto", "exact", "flooding", "sequential", "residual")
# Costs divided by less, and logarithms times more, could leave the range of numbers.
LEAST_TEMPERATURE, LARGEST_TEMPERATURE = 1e-6, 1e100


class Settings(NamedTuple):
    """Checked settings of `infer`; None is for an engine's own choice."""

    temperature: float
    schedule: str
    max_iter: int | None
    damping: float
    tol: float | None
    convex: bool
    init: Result | None
    threads: int | None

    def require_exact(self, problem: str) -> None:
        """Refuse schedules that exact engines do not have."""
        if self.schedule not in ("auto", "exact"):
            raise InputError(
                f"schedule must be 'auto' or 'exact' for {problem}, got {self.schedule!r}; leave "
                "it out."
            )

    def require_sum_or_max(self, problem: str) -> None:
        """Refuse temperatures between and above those of sum-product and max-product."""
        if self.temperature not in (0.0, 1.0):
            raise InputError(
                f"temperature must be 1 or 0 for {problem}, got {self.temperature:g}; use 1 for "
                "marginals and 0 for the labels of least energy."
            )


def as_settings(
    temperature: Any, schedule: Any, max_iter: Any, damping: Any, tol: Any, convex: Any,
    init: Result | None, threads: int | None,
) -> Settings:
    """Settings from the arguments of `infer`."""
    least = None if tol is None else as_scalar(tol, "tol")
    if least is not None and least < 0:
        raise InputError(f"tol must not be negative, got {least:g}; use 0 to do all iterations.")
    return Settings(
        as_temperature(temperature), as_choice(schedule, "schedule", SCHEDULES),
        None if max_iter is None else as_count(max_iter, "max_iter"), as_damping(damping), least,
        bool(convex), init, threads,
    )


def as_temperature(temperature: Any, *, may_be_zero: bool = True) -> float:
    """A positive number, or 0 where that means something."""
    value = as_scalar(temperature, "temperature")
    if not (value >= LEAST_TEMPERATURE or (may_be_zero and value == 0.0)):
        least, remedy = f"at least {LEAST_TEMPERATURE:g}", "use best for 0"
        if may_be_zero:
            least, remedy = f"0 or {least}", "use 0 for the labels of least energy"
        raise InputError(f"temperature must be {least}, got {value:g}; {remedy}.")
    if value > LARGEST_TEMPERATURE:
        raise InputError(
            f"temperature must not exceed {LARGEST_TEMPERATURE:g}, got {value:g}; at 1e10 all "
            "labels are as good as equal already."
        )
    return value
