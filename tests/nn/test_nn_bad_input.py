"""What a new user of `crfield.nn` gets wrong: one sentence with a remedy, on the CPU at once."""

import warnings

import numpy as np
import pytest

from torch_device import DEVICE, torch

# isort: split
from crfield import (
    Bilateral,
    DenseCRF,
    Diagonal,
    FeatureKernel,
    Inference,
    Pairwise,
    Potts,
    Spatial,
    Symmetric,
)
from crfield import nn as crf_nn
from crfield.dense.kernels import Kernel
from refusal import refusal
from small_batch import LABELS, MATRIX, POTTS_TERMS, some_batch

LOGITS, IMAGE = some_batch(dtype=torch.float32)
DEPTH = [Pairwise(FeatureKernel("depth", 1), Potts(1.0))]
LOSSES = [
    crf_nn.LogLikelihood, crf_nn.RobustLogLikelihood, crf_nn.ExpectedHamming,
    crf_nn.IntersectionOverUnion,
]


class OwnKernel(Kernel):
    """A kernel that a layer knows nothing of."""


def with_value(x, value, *index):
    x = x.clone()
    x[index] = value
    return x


@pytest.fixture(params=["layer", "energy"])
def module(request):
    layer = crf_nn.DenseCRF(3, POTTS_TERMS)
    return layer if request.param == "layer" else crf_nn.PairwiseEnergy(layer)


def test_logits_that_are_none(module):
    for wrong, kind in ((LOGITS.numpy(), "ndarray"), (LOGITS.tolist(), "list"), (None, "NoneType")):
        assert f"logits must be a tensor, got {kind}" in refusal(module, wrong, IMAGE)
    assert "dense tensor" in refusal(module, LOGITS.to_sparse(), IMAGE)
    assert "real numbers" in refusal(module, LOGITS.to(torch.complex64), IMAGE)
    for wrong in (LOGITS > 0, LOGITS.long()):
        assert "floating-point" in refusal(module, wrong, IMAGE)
    assert "meta device" in refusal(module, LOGITS.to("meta"), IMAGE.to("meta"))
    for empty in (LOGITS[:0], LOGITS[..., :0]):
        assert "at least one point" in refusal(module, empty, IMAGE)
    for wrong in (LOGITS[0], LOGITS[0, 0], LOGITS.movedim(1, -1), LOGITS[None, None]):
        assert "batch first and the labels second" in refusal(module, wrong, IMAGE)
    message = refusal(module, LOGITS[:, :2], IMAGE)
    assert message.startswith("the layer is for 3 labels, got 2 in logits of shape (2, 2, 4, 5)")


def test_images_that_are_none(module):
    for wrong, kind in ((IMAGE.numpy(), "ndarray"), (IMAGE.tolist(), "list"), ("a.png", "str")):
        assert f"image must be a tensor, got {kind}" in refusal(module, LOGITS, wrong)
    assert "dense tensor" in refusal(module, LOGITS, IMAGE.to_sparse())
    assert "real numbers" in refusal(module, LOGITS, IMAGE.to(torch.complex64))
    assert "image must be given" in refusal(module, LOGITS)
    for wrong in (
        IMAGE.movedim(1, -1), IMAGE[0], IMAGE[:, 0], IMAGE[..., :-1], IMAGE[:1], IMAGE[:, :0],
        torch.tensor(1.0),
    ):
        message = refusal(module, LOGITS, wrong)
        assert message.startswith("image must have shape")
        assert "channels second" in message


def test_logits_of_a_coarser_grid(module):
    large = torch.nn.functional.interpolate(IMAGE, scale_factor=4)
    remedy = 'torch.nn.functional.interpolate(logits, image.shape[2:], mode="bilinear")'
    assert remedy in refusal(module, LOGITS, large)
    finer = torch.nn.functional.interpolate(LOGITS, large.shape[2:], mode="bilinear")
    assert torch.isfinite(module(finer, large)).all()


def test_options_that_a_layer_does_not_have():
    with pytest.raises(TypeError, match=r"pass inference=Inference\(max_iter=10\)\.$"):
        crf_nn.DenseCRF(5, max_iter=10)
    with pytest.raises(TypeError, match=r"a layer has no option 'iters', got iters=10; see help"):
        crf_nn.DenseCRF(5, iters=10)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_images_that_are_not_finite(module, value, dtype):
    wrong = with_value(IMAGE.to(dtype), value, 1, 2, 0, 3)
    assert "image must be finite" in refusal(module, LOGITS, wrong)
    assert "at index (1, 2, 0, 3)" in refusal(module, LOGITS, wrong.requires_grad_())


def test_features_that_are_none():
    layer = crf_nn.DenseCRF(3, DEPTH)
    depth = IMAGE[:, :1]
    for wrong in (depth, [depth], {"depth"}, "depth"):
        assert "dict of named tensors" in refusal(layer, LOGITS, features=wrong)
    assert "features must hold 'depth'" in refusal(layer, LOGITS)
    assert "got 1, x" in refusal(layer, LOGITS, features={"x": depth, 1: depth})
    for wrong, words in (
        (depth.numpy(), "must be a tensor"), (depth.tolist(), "must be a tensor"),
        (None, "must be a tensor"), (IMAGE, "must have shape"),
        (depth.to(torch.complex64), "must hold real numbers"),
        (with_value(depth, np.nan, 0, 0, 1, 2), "must be finite, got nan at index (0, 0, 1, 2)"),
    ):
        message = refusal(layer, LOGITS, features={"depth": wrong})
        assert message.startswith(f"features['depth'] {words}")


@pytest.mark.skipif(DEVICE == "cpu", reason="needs two devices")
def test_tensors_on_two_devices():
    assert "device" in refusal(crf_nn.DenseCRF(3, POTTS_TERMS), LOGITS.to(DEVICE), IMAGE)
    assert "device" in refusal(
        crf_nn.DenseCRF(3, DEPTH), LOGITS.to(DEVICE), features={"depth": IMAGE[:, :1]}
    )
    assert "device" in refusal(crf_nn.LogLikelihood(), LOGITS.to(DEVICE), LABELS)


def test_lab_colors_need_three_channels():
    layer = crf_nn.DenseCRF(
        3, [Pairwise(Bilateral(4.0, 10.0, color_space="lab"), Potts(1.0))]
    )
    assert "3 channels" in refusal(layer, LOGITS, IMAGE[:, :1])


@pytest.mark.parametrize(("change", "message"), [
    ({"n_labels": "x"}, "n_labels must be a whole number"),
    ({"n_labels": 1}, "n_labels must be at least 2 in a layer"),
    ({"terms": POTTS_TERMS[0]}, "list of Pairwise"),
    ({"terms": [Spatial(2.0)]}, "terms[0] must be a Pairwise"),
    ({"terms": [Pairwise(OwnKernel(), Potts(1.0))]}, "got OwnKernel"),
    ({"terms": [Pairwise(Spatial(2.0), Potts(-1.0))]}, "negative"),
    ({"terms": [Pairwise(Spatial(2.0), Potts(1.0), weight=-1.0)]}, "negative"),
    ({"terms": [Pairwise(Spatial(2.0, shape="tent"), Potts(1.0))]}, "Gaussian"),
    ({"terms": [Pairwise(Spatial(2.0, normalization="before"), Potts(1.0))]}, "guarantee"),
    *(({"learn": learn}, "learn must be ") for learn in (
        None, 3, True, "weights", ("weight", 3), ("everything",),
    )),
    ({"inference": 5}, "inference"),
    ({"inference": Inference("sequential")}, "algorithm"),
    ({"output": "probabilities"}, "output"),
    ({"gradient": "none"}, "gradient"),
    ({"spacing": -1.0}, "spacing"),
])
def test_bad_constructions(change, message):
    assert message in refusal(crf_nn.DenseCRF, **{"n_labels": 3, "terms": POTTS_TERMS, **change})


def test_bad_models():
    for wrong in ("file", crf_nn.DenseCRF(3), None):
        assert "DenseCRF.load" in refusal(crf_nn.DenseCRF.from_model, wrong)
    tent = DenseCRF(3, [Pairwise(Spatial(2.0, shape="tent"), Potts(1.0))])
    assert "Gaussian" in refusal(crf_nn.DenseCRF.from_model, tent)
    assert 'filter="exact"' in refusal(
        crf_nn.DenseCRF.from_model, tent, learn=(), inference=Inference(filter="lattice")
    )
    recalibrated = DenseCRF(3, POTTS_TERMS, np.eye(3, 4))
    assert "recalibration" in refusal(crf_nn.DenseCRF.from_model, recalibrated)
    for wrong in (3, DenseCRF(3, POTTS_TERMS)):
        assert "DenseCRF.from_model" in refusal(crf_nn.PairwiseEnergy, wrong)


@pytest.mark.parametrize(("term", "learn", "is_stuck"), [
    (Pairwise(Spatial(2.0), Potts(0.0)), "compatibility", True),
    (Pairwise(Spatial(2.0), Potts(0.0)), "weight", True),
    (Pairwise(Spatial(2.0), Potts(0.0)), "kernel", False),
    (Pairwise(Spatial(2.0), Potts(0.0)), (), False),
    (Pairwise(Spatial(2.0), Potts(1.0), weight=0.0), "weight", True),
    (Pairwise(Spatial(2.0), Diagonal([0.0, 1.0, 1.0])), "compatibility", True),
    (Pairwise(Spatial(2.0), Diagonal([0.0, 1.0, 1.0])), "weight", False),
    (Pairwise(Spatial(2.0), Symmetric(np.zeros((3, 3)))), "compatibility", False),
    (Pairwise(Spatial(2.0), Symmetric(np.zeros((3, 3)))), "weight", True),
])
def test_what_can_never_be_learned_is_warned_of(term, learn, is_stuck):
    if is_stuck:
        with pytest.warns(UserWarning, match="stays 0"):
            crf_nn.DenseCRF(3, [term], learn=learn)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            crf_nn.DenseCRF(3, [term], learn=learn)


@pytest.mark.parametrize("name", ["weight", "compatibility", "sigma"])
@pytest.mark.parametrize("value", [np.nan, 1000.0])
def test_parameters_that_training_has_lost(name, value):
    layer = crf_nn.DenseCRF(3, POTTS_TERMS)
    with torch.no_grad():
        getattr(layer.terms[0], name).fill_(value)
    assert f"{name} of a layer must be finite" in refusal(layer, LOGITS, IMAGE)
    assert "lower the learning rate" in refusal(layer.to_model)


def test_a_matrix_that_training_has_lost():
    layer = crf_nn.DenseCRF(3, [Pairwise(Spatial(2.0), Symmetric(MATRIX))])
    with torch.no_grad():
        layer.terms[0].compatibility[0, 1] = np.nan
    assert "compatibility of a layer must be finite" in refusal(layer, LOGITS)


def test_numbers_beyond_half_precision():
    for kernel, weight in ((Spatial(1e5), 1.0), (Spatial(2.0), 1e6)):
        layer = crf_nn.DenseCRF(3, [Pairwise(kernel, Potts(weight))]).half()
        assert "keep the layer in float32" in refusal(layer, LOGITS)


@pytest.mark.parametrize(("kernel", "message"), [
    *((Spatial(sigma), "positions divided by sigma") for sigma in (1e-20, [2.0, 1e-20], 1e-50)),
    *((kernel, "widths must be one number") for kernel in (
        Spatial([1.0, 2.0, 3.0]), Bilateral(3.0, [1.0, 2.0]), Bilateral([1.0, 2.0, 3.0], 4.0),
        Bilateral(covariance=np.eye(4)),
    )),
])
def test_widths_that_do_not_fit(kernel, message):
    layer = crf_nn.DenseCRF(3, [Pairwise(kernel, Potts(1.0))])
    assert message in refusal(layer, LOGITS, IMAGE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_layers_and_logits_of_all_types_go_together(dtype):
    wanted = crf_nn.DenseCRF(3, POTTS_TERMS, output="marginals")(LOGITS, IMAGE)
    layer = crf_nn.DenseCRF(3, POTTS_TERMS, output="marginals").to(dtype)
    for other in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        found = layer(LOGITS.to(other), IMAGE)
        assert found.dtype == other
        torch.testing.assert_close(found.float(), wanted, atol=0.02, rtol=0)


def test_states_of_other_layers():
    layer = crf_nn.DenseCRF(3, POTTS_TERMS)
    other = crf_nn.DenseCRF(3, [Pairwise(Spatial(2.0), Diagonal([1.0, 1.0, 1.0]))])
    with pytest.raises(RuntimeError, match=r"terms\.1\.weight"):
        layer.load_state_dict(other.state_dict())


@pytest.mark.parametrize("kind", LOSSES)
def test_bad_tensors_for_losses(kind):
    loss = kind()
    assert "logits must be a tensor, got ndarray" in refusal(loss, LOGITS.numpy(), LABELS)
    assert "floating-point" in refusal(loss, LOGITS.long(), LABELS)
    assert "floating-point" in refusal(loss, LABELS, LOGITS)
    assert "real numbers" in refusal(loss, LOGITS.to(torch.complex64), LABELS)
    assert "at least one point" in refusal(loss, LOGITS[:0], LABELS[:0])
    for wrong in (LOGITS[0, 0], LOGITS[0, 0, 0], LOGITS[0, 0, 0, 0]):
        assert "logits must have shape (B, L, *grid)" in refusal(loss, wrong, LABELS)
    for wrong, name in ((LABELS.numpy(), "ndarray"), (LABELS.tolist(), "list"), (None, "NoneType")):
        assert f"labels must be a tensor, got {name}" in refusal(loss, LOGITS, wrong)
    for wrong in (LABELS.float(), LABELS.double()):
        assert "labels must be whole numbers" in refusal(loss, LOGITS, wrong)
    for wrong in (LABELS[:, None], LABELS[:, :-1], LABELS.reshape(-1)):
        assert "for logits (B, L, *grid) of shape (2, 3, 4, 5)" in refusal(loss, LOGITS, wrong)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 3.0]])
@pytest.mark.parametrize("void", [255, None])
def test_labels_out_of_range(kind, weights, void):
    for value in (3, -1, -100):
        loss = kind(weights=weights, void=void)
        message = refusal(loss, LOGITS, with_value(LABELS, value, 1, 2, 3))
        assert f"0..2 (void: {void}), got {value} at index (1, 2, 3)" in message


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_weights_of_another_number_of_labels(kind, n):
    assert "weights must have 3 numbers" in refusal(kind(weights=np.ones(n)), LOGITS, LABELS)


@pytest.mark.parametrize("weights", [
    [-1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [], 3.0, [[1.0, 2.0]], "abc", [1.0, np.nan]
])
def test_bad_weights(weights):
    assert "weights must " in refusal(crf_nn.LogLikelihood, weights=weights)


def test_weights_may_be_any_tensor():
    weights = torch.tensor([1.0, 2.0, 3.0], requires_grad=True, device=DEVICE)
    assert not crf_nn.LogLikelihood(weights=weights).weights.requires_grad


@pytest.mark.parametrize("void", ["a", 1.5, [255]])
def test_bad_void_labels(void):
    assert "void must be a whole number" in refusal(crf_nn.LogLikelihood, void=void)


def test_a_bad_smallest_probability():
    assert "eps" in refusal(crf_nn.RobustLogLikelihood, -1.0)


def test_probabilities_where_logits_belong():
    layer = crf_nn.DenseCRF(3, POTTS_TERMS, output="marginals")
    marginals = layer(LOGITS, IMAGE)
    for call in (
        lambda: crf_nn.LogLikelihood()(marginals, LABELS), lambda: layer(marginals, IMAGE),
        lambda: crf_nn.PairwiseEnergy(layer)(marginals, IMAGE),
    ):
        with pytest.warns(UserWarning, match="look like probabilities"):
            call()
    crf_nn.LogLikelihood()(marginals.log(), LABELS)
    crf_nn.LogLikelihood()(torch.zeros_like(LOGITS), LABELS)


@pytest.fixture
def forgetful_compiler():
    """Forgets where graphs broke, which would break those of later tests."""
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at it
@pytest.mark.usefixtures("forgetful_compiler")
def test_bad_input_inside_compiled_graphs():
    """Without `fullgraph` the sentence comes out as it is; with it the compiler quotes it."""
    layer = crf_nn.DenseCRF(3, POTTS_TERMS)
    whole = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="image must have shape"):
        whole(LOGITS, IMAGE[..., :-1])
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager")
    assert "logits must be a tensor" in refusal(compiled, LOGITS.numpy(), IMAGE)
    assert "image must be a tensor" in refusal(compiled, LOGITS, IMAGE.numpy())
    assert "image must be given" in refusal(compiled, LOGITS)
    assert "must be finite" in refusal(compiled, LOGITS, with_value(IMAGE, np.nan, 0, 0, 0, 0))
    loss = torch.compile(crf_nn.LogLikelihood(), backend="aot_eager")
    assert "labels must be whole numbers" in refusal(loss, LOGITS, LABELS.float())
    assert loss(LOGITS, LABELS).item() == pytest.approx(
        crf_nn.LogLikelihood()(LOGITS, LABELS).item()
    )


def test_layers_without_numbers_can_be_made():
    with torch.device("meta"):
        assert crf_nn.DenseCRF(3, POTTS_TERMS).terms[0].weight.is_meta
