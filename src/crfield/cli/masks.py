"""Whether label maps of a folder are masks, in which 255 is a label: the same for all of them.

A map of 0 and 255 alone is a mask, unless others of its folder hold more: then 255 means unknown.
To read every map before the first is refined would take long, so some of them decide, and the
others are held to that when their turn comes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError
from crfield.datasets.label_maps import are_masks
from crfield.unary.costs import MASK, UNKNOWN, mask_values

_LOOKED_AT = 100  # maps at most, which is a second for those of 4 megapixels


def with_unknown(
    pairs: Sequence[tuple[str, str]], arguments: argparse.Namespace, keywords: dict[str, Any]
) -> dict[str, Any]:
    """`keywords` with what 255 means in the label maps of a folder, where the user does not say.

    pairs : the images with their maps, of which some are looked at, evenly spread and always the
        same ones.
    """
    if "labels" not in arguments or "unknown" in arguments:
        return keywords
    model = keywords.get("model")
    some = pairs[:: -(-len(pairs) // _LOOKED_AT) or 1]
    masks = (model is None or model.n_labels == 2) and are_masks(Path(path) for _, path in some)
    return {**keywords, "unknown": None if masks else UNKNOWN}


def check_mask(
    path: Path, parts: Iterable[NDArray[Any]], arguments: argparse.Namespace,
    keywords: dict[str, Any],
) -> None:
    """Refuse a map with another label where the maps that were looked at are masks.

    parts : arrays (*part,) that make up the map.
    """
    if "unknown" in arguments or keywords.get("unknown", UNKNOWN) is not None:
        return
    for part in parts:
        if part.size and not mask_values([part]):
            other = next(label for label in np.unique(part).tolist() if label not in MASK)
            raise InputError(
                f"expected a mask of 0 and 255, as others of the folder are, but {path} holds "
                f"{other}; add --unknown 255 if 255 means unknown in them, or --unknown none if "
                "it is a label."
            )
