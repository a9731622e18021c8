"""Every public name says what it is, the shapes of its arrays and its equation if it has one."""

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pytest

from public_names import exported, load

MODULES = (
    "crfield", "crfield.compat.pydensecrf", "crfield.compat.pydensecrf.densecrf",
    "crfield.compat.pydensecrf.utils", "crfield.dense.compatibility", "crfield.datasets",
    "crfield.estimators", "crfield.dense.filters", "crfield.graphcut",
    "crfield.graphcut.results", "crfield.datasets.ellipses", "crfield.datasets.words",
    "crfield.graphs", "crfield.dense.kernels", "crfield.learning", "crfield.learning.losses",
    "crfield.metrics", "crfield.nn", "crfield.patterns", "crfield.show.pictures",
    "crfield.unary.costs", "crfield.patterns.variability",
)

# Types that hold an array, and what arrays are called where the type says nothing.
ARRAY_TYPES = re.compile(
    r"\b(Array|ArrayLike|Confusion|Counts|Doubles|FloatArray|Indices|Labels|Matrix|NDArray|Offsets"
    r"|Points|Tensor|Totals|Variables|Vector)\b"
)
ARRAY_NAMES = {
    "boundary", "colors", "costs", "covariance", "edge_costs", "edges", "features", "image",
    "images", "labels", "marginals", "mask", "masks", "offsets", "pairwise", "positions",
    "prediction", "probabilities", "scores", "states", "tables", "truth", "unaries", "unary",
}
# A tuple of sizes such as (H, W, 3), (*grid, L), (*grid[, C]), (N,) or (), or shapes compared.
SHAPE = re.compile(
    r"\(\)|\(\*grid\)|\((?:\*|\.\.\.|\w)[^()]*(?:\([^()]*\)[^()]*)?,[^()]*\)|\bshape\b"
)
# "inputs as in `Chains`", "the rest are those of `infer`": what is said there counts here.
REFERENCE = re.compile(r"\b(?:those of|as|as in|as for|see)\s+`([\w.]+)`", re.I)
EQUATION = re.compile(
    r"[\w)\]'~] = [-\w(|]|\bsum_\w|[-:] ?(?:sum|log|max)\b|\bexp\(|\| / \|"
    r"|\b(?:KK1[13]|CHOPP)(?: supplement,)? (?:section )?\d|\bL7, |\beqs?\. \d"
)
FORMULAS = {
    "crfield": """Bilateral DenseCRF DenseCRF.energy DenseCRF.infer Diagonal FeatureKernel Potts
        Spatial Symmetric.diagonally_dominant Symmetric.l1 unary_from_features unary_from_labels
        unary_from_logits unary_from_probabilities unary_from_scribbles""",
    "crfield.compat.pydensecrf.densecrf": "DenseCRF.klDivergence LogisticUnary",
    "crfield.compat.pydensecrf.utils": "unary_from_softmax",
    "crfield.dense.compatibility": "Diagonal Potts center",
    "crfield.datasets": "Augmentation ellipse_set noisy_probabilities noisy_unaries",
    "crfield.dense.filters": """ExactFilter ExactFilter.plain_gradient GridFilter LatticeFilter
        TableFilter.complete_gradient""",
    "crfield.graphcut": """alpha_expansion boundary_weights contrast_weights cut_grids
        minimize_binary minimize_binary_grid""",
    "crfield.graphs": """Camera ChainClassifier Chains Chains.energy DistanceFactors FactorGraph
        GraphClassifier GridClassifier PatternFactors PictorialStructure PottsFactors RayFactors
        RayModel best chain_loss distance_transform fuse_independent infer log_linear_loss
        ray_messages sample soft_distance_transform""",
    "crfield.dense.kernels": "Bilateral FeatureKernel Kernel.is_symmetric Spatial",
    "crfield.learning": "DatasetObjective approximate_likelihood generative_kernel learn",
    "crfield.learning.losses": """ExpectedHamming IntersectionOverUnion LogLikelihood
        Loss.log_gradient RobustLogLikelihood class_weights""",
    "crfield.metrics": "class_accuracy iou_per_label pixel_accuracy",
    "crfield.nn": """ChainCRF DenseCRF ExpectedHamming GridCRF IntersectionOverUnion LogLikelihood
        PairwiseEnergy RobustLogLikelihood TreeCRF expected_depth_error propagate_graph
        propagate_grid propagate_rays tree_edge_marginals tree_log_partition tree_marginals
        tree_nll""",
    "crfield.patterns": """DeviationPatterns MultiLabelPatternCRF PatternCRF
        PatternPotential.energies PatternPotential.expected_hidden
        PatternPotential.lower_bound Patterns infer learn_patterns mask_scores pretrain""",
    "crfield.show.pictures": "entropy_map",
    "crfield.patterns.variability": "variability",
}


def methods(owner: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of a class that this package defines."""
    for name in dir(owner):
        home = next((base for base in owner.__mro__ if name in vars(base)), object)
        if name[0] == "_" or not home.__module__.startswith("crfield"):
            continue
        value = vars(home)[name]
        value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if inspect.isfunction(value) or isinstance(value, property | cached_property):
            yield name, value


def surface(path: str) -> dict[str, tuple[Any, type | None]]:
    """What is public in a module by its full name, each with the class it belongs to."""
    try:
        module = importlib.import_module(path)
    except ImportError:
        assert path == "crfield.nn"
        return {}
    found: dict[str, tuple[Any, type | None]] = {path: (module, None)}
    for name, value in exported(module):
        found[f"{path}.{name}"] = (value, None)
        if inspect.isclass(value):
            for method, function in methods(value):
                found[f"{path}.{name}.{method}"] = (function, value)
    return found


BY_MODULE = {path: surface(path) for path in MODULES}
SURFACE = {name: entry for names in BY_MODULE.values() for name, entry in names.items()}


def own_text(name: str, value: Any, owner: type | None) -> str:
    """The docstring, a method's own or the one it inherits; none where a dataclass made it up."""
    text = inspect.getdoc(value) or ""
    if owner is not None and not text:
        text = inspect.getdoc(getattr(owner, name.rpartition(".")[2])) or ""
    return "" if inspect.isclass(value) and text.startswith(f"{value.__name__}(") else text


def context(name: str, value: Any, owner: type | None, seen: tuple[str, ...] = ()) -> str:
    """What else a reader is led to: the class, those it extends, and the names referred to."""
    family = owner if owner is not None else value
    bases = family.__mro__ if inspect.isclass(family) else ()
    ours = [base for base in bases if base.__module__.startswith("crfield")]
    texts = [inspect.cleandoc(base.__doc__ or "") for base in ours]
    place = name.rpartition(".")[0]
    for target in REFERENCE.findall("\n".join([own_text(name, value, owner), *texts])):
        for full in (f"{place}.{target}", f"{place.rpartition('.')[0]}.{target}"):
            if full in SURFACE and full not in (name, *seen):
                entry = SURFACE[full]
                texts += [own_text(full, *entry), context(full, *entry, (name, *seen))]
    return "\n\n".join(texts)


def parameters(value: Any) -> dict[str, str]:
    """Parameters of a function or a constructor, each with its annotation."""
    if isinstance(value, property | cached_property) or inspect.ismodule(value):
        return {}
    if inspect.isclass(value) and (
        issubclass(value, enum.Enum | BaseException) or getattr(value, "_is_protocol", False)
    ):
        return {}
    try:
        signature = inspect.signature(value)
    except ValueError:
        return {}
    return {
        name: str(p.annotation)
        for name, p in signature.parameters.items()
        if name not in ("self", "cls") and name[0] != "_"
    }


def returned(value: Any) -> str:
    """The annotation of what a function or a property gives."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, cached_property):
        value = value.func
    return str(getattr(value, "__annotations__", {}).get("return", ""))


def is_array(name: str, annotation: str) -> bool:
    return bool(ARRAY_TYPES.search(annotation)) or (annotation == "Any" and name in ARRAY_NAMES)


def entries(text: str) -> list[str]:
    """A docstring in parts: paragraphs, sentences and the lines about each parameter."""
    names = r"\w+(?:, \w+)*"
    return re.split(rf"\n\s*\n|(?<=\.)\s+|\n(?={names} : )|\n(?={names}\n    )", text)


def mentions(text: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text, re.I) is not None


def complaints(name: str, value: Any, owner: type | None) -> list[str]:
    """What a docstring lacks."""
    text = own_text(name, value, owner)
    if not text:
        return ["has no docstring"]
    found = []
    if not re.search(r"\.(?=\s|$)|:$", re.split(r"\n\s*\n", text)[0].rstrip()):
        found.append("its first sentence has no end")
    if re.search(r"^\w+(?:, \w+)* : .*; \w+(?:, \w+)* : ", text, re.M):
        found.append("has two parameters in one line")
    everything = text + "\n\n" + context(name, value, owner)
    for parameter, annotation in parameters(value).items():
        about = [e for e in entries(everything) if mentions(e, parameter)]
        if not about:
            found.append(f"does not mention {parameter}")
        elif is_array(parameter, annotation) and not any(map(SHAPE.search, about)):
            found.append(f"does not give the shape of {parameter}")
    if ARRAY_TYPES.search(returned(value)) and not SHAPE.search(text):
        found.append("does not give the shape of what it returns")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_docstring_with_shapes(module):
    load(module)
    lacking = {name: complaints(name, *entry) for name, entry in BY_MODULE[module].items()}
    assert not {name: found for name, found in lacking.items() if found}


@pytest.mark.parametrize("module", FORMULAS)
def test_what_computes_a_formula_shows_it_or_says_where_it_is(module):
    load(module)
    full = [f"{module}.{name}" for name in FORMULAS[module].split()]
    assert not [name for name in full if not EQUATION.search(own_text(name, *SURFACE[name]))]
