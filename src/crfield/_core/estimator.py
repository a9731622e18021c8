"""What every estimator needs to be one of scikit-learn's."""

from __future__ import annotations

import inspect
from typing import Any, Self

from crfield._core.validate import InputError, as_choice


class NotFittedError(InputError, AttributeError):
    """Raised by a prediction before `fit`.

    It has the bases of scikit-learn's error of this name, ValueError and AttributeError, and is the
    same class whether scikit-learn is installed or not.
    """


class Estimator:
    """Parameters by name, for samples that are not rows of one array."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments; `deep` changes nothing, as none of them is an estimator."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change constructor arguments, `params`; they take effect with the next `fit`."""
        known = self.get_params()
        for name, value in params.items():
            as_choice(name, "a parameter", known)
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks of an estimator.

        The type is left open: from a "classifier" scikit-learn expects one class per sample, and it
        would look into y to stratify the samples by it.
        """
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=True, one_d_labels=False, two_d_labels=False),
            input_tags=InputTags(two_d_array=False),
        )

    def _check_fitted(self, attribute: str) -> None:
        if not hasattr(self, attribute):
            raise NotFittedError(
                "prediction needs a fitted model, got an estimator before fit; call fit(X, y)."
            )
