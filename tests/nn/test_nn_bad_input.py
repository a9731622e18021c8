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

TERMS = (Pairwise(Spatial(2.0), Potts(1.5)), Pairwise(Bilateral(4.0, 60.0), Potts(2.0)))
DEPTH = [Pairwise(FeatureKernel("depth", 1), Potts(1.0))]
LOSSES = [
    crf_nn.LogLikelihood, crf_nn.RobustLogLikelihood, crf_nn.ExpectedHamming,
    crf_nn.IntersectionOverUnion,
]


class OwnKernel(Kernel):
    """A kernel that a layer knows nothing of."""


def some_batch():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 5, generator=rng)
    image = 255 * torch.rand(2, 3, 4, 5, generator=rng)
    labels = torch.randint(0, 3, (2, 4, 5), generator=rng)
    return logits, image, labels


def with_value(x, value, *index):
    x = x.clone()
    x[index] = value
    return x


@pytest.fixture(params=["layer", "energy"])
def module(request):
    layer = crf_nn.DenseCRF(3, TERMS)
    return layer if request.param == "layer" else crf_nn.PairwiseEnergy(layer)


def test_logits_that_are_none(module):
    logits, image, _ = some_batch()
    for wrong, kind in ((logits.numpy(), "ndarray"), (logits.tolist(), "list"), (None, "NoneType")):
        assert f"logits must be a tensor, got {kind}" in refusal(module, wrong, image)
    assert "dense tensor" in refusal(module, logits.to_sparse(), image)
    assert "real numbers" in refusal(module, logits.to(torch.complex64), image)
    assert "floating-point" in refusal(module, logits > 0, image)
    assert "meta device" in refusal(module, logits.to("meta"), image.to("meta"))
    for empty in (logits[:0], logits[..., :0]):
        assert "at least one point" in refusal(module, empty, image)
    for wrong in (logits[0], logits[0, 0], logits.movedim(1, -1), logits[None, None]):
        assert "batch first and the labels second" in refusal(module, wrong, image)


def test_images_that_are_none(module):
    logits, image, _ = some_batch()
    for wrong, kind in ((image.numpy(), "ndarray"), (image.tolist(), "list"), ("a.png", "str")):
        assert f"image must be a tensor, got {kind}" in refusal(module, logits, wrong)
    assert "dense tensor" in refusal(module, logits, image.to_sparse())
    assert "real numbers" in refusal(module, logits, image.to(torch.complex64))
    assert "must be given" in refusal(module, logits)
    for wrong in (
        image.movedim(1, -1), image[0], image[:, 0], image[..., :-1], image[:1], image[:, :0],
        torch.tensor(1.0),
    ):
        assert "channels second" in refusal(module, logits, wrong)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_images_that_are_not_finite(module, value, dtype):
    logits, image, _ = some_batch()
    wrong = with_value(image.to(dtype), value, 1, 2, 0, 3)
    assert "image must be finite" in refusal(module, logits, wrong)
    assert "at index (1, 2, 0, 3)" in refusal(module, logits, wrong.requires_grad_())


def test_features_that_are_none():
    logits, image, _ = some_batch()
    layer = crf_nn.DenseCRF(3, DEPTH)
    depth = image[:, :1]
    for wrong in (depth, [depth], {"depth"}, "depth"):
        assert "dict of named tensors" in refusal(layer, logits, features=wrong)
    assert "got 1, x" in refusal(layer, logits, features={"x": depth, 1: depth})
    for wrong in (depth.numpy(), depth.tolist(), None):
        assert "features['depth'] must be a tensor" in refusal(
            layer, logits, features={"depth": wrong}
        )
    assert "real numbers" in refusal(
        layer, logits, features={"depth": depth.to(torch.complex64)}
    )
    message = refusal(layer, logits, features={"depth": with_value(depth, np.nan, 0, 0, 1, 2)})
    assert "features['depth'] must be finite, got nan at index (0, 0, 1, 2)" in message


@pytest.mark.skipif(DEVICE == "cpu", reason="needs two devices")
def test_tensors_on_two_devices():
    logits, image, labels = some_batch()
    assert "device" in refusal(crf_nn.DenseCRF(3, TERMS), logits.to(DEVICE), image)
    assert "device" in refusal(
        crf_nn.DenseCRF(3, DEPTH), logits.to(DEVICE), features={"depth": image[:, :1]}
    )
    assert "device" in refusal(crf_nn.LogLikelihood(), logits.to(DEVICE), labels)


def test_lab_colors_need_three_channels():
    logits, image, _ = some_batch()
    layer = crf_nn.DenseCRF(
        3, [Pairwise(Bilateral(4.0, 10.0, color_space="lab"), Potts(1.0))]
    )
    assert "3 channels" in refusal(layer, logits, image[:, :1])


@pytest.mark.parametrize(("arguments", "message"), [
    (("x",), "n_labels must be a whole number"),
    ((1,), "n_labels must be at least 2 in a layer"),
    ((3, TERMS[0]), "list of Pairwise"),
    ((3, [Spatial(2.0)]), r"terms[0] must be a Pairwise"),
    ((3, [Pairwise(OwnKernel(), Potts(1.0))]), "got OwnKernel"),
])
def test_bad_constructions(arguments, message):
    assert message in refusal(crf_nn.DenseCRF, *arguments)


@pytest.mark.parametrize("learn", [None, 3, True, "weights", ("weight", 3)])
def test_bad_names_of_what_is_learned(learn):
    assert "learn must be " in refusal(crf_nn.DenseCRF, 3, TERMS, learn=learn)


def test_bad_models():
    for wrong in ("file", crf_nn.DenseCRF(3), None):
        assert "DenseCRF.load" in refusal(crf_nn.DenseCRF.from_model, wrong)
    tent = DenseCRF(3, [Pairwise(Spatial(2.0, shape="tent"), Potts(1.0))])
    assert "Gaussian" in refusal(crf_nn.DenseCRF.from_model, tent)
    assert 'filter="exact"' in refusal(
        crf_nn.DenseCRF.from_model, tent, learn=(), inference=Inference(filter="lattice")
    )
    for wrong in (3, DenseCRF(3, TERMS)):
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
    logits, image, _ = some_batch()
    layer = crf_nn.DenseCRF(3, TERMS)
    with torch.no_grad():
        getattr(layer.terms[0], name).fill_(value)
    assert f"{name} of a layer must be finite" in refusal(layer, logits, image)
    assert "lower the learning rate" in refusal(layer.to_model)


def test_a_matrix_that_training_has_lost():
    logits, _, _ = some_batch()
    layer = crf_nn.DenseCRF(3, [Pairwise(Spatial(2.0), Symmetric(1 - np.eye(3)))])
    with torch.no_grad():
        layer.terms[0].compatibility[0, 1] = np.nan
    assert "compatibility of a layer must be finite" in refusal(layer, logits)


def test_numbers_beyond_half_precision():
    logits, _, _ = some_batch()
    for kernel, weight in ((Spatial(1e5), 1.0), (Spatial(2.0), 1e6)):
        layer = crf_nn.DenseCRF(3, [Pairwise(kernel, Potts(weight))]).half()
        assert "keep the layer in float32" in refusal(layer, logits)


@pytest.mark.parametrize("sigma", [1e-20, [2.0, 1e-20], 1e-50])
def test_widths_that_are_too_small(sigma):
    logits, _, _ = some_batch()
    layer = crf_nn.DenseCRF(3, [Pairwise(Spatial(sigma), Potts(1.0))])
    assert "positions divided by sigma" in refusal(layer, logits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_layers_and_logits_of_all_types_go_together(dtype):
    logits, image, _ = some_batch()
    wanted = crf_nn.DenseCRF(3, TERMS, output="marginals")(logits, image)
    layer = crf_nn.DenseCRF(3, TERMS, output="marginals").to(dtype)
    for other in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        found = layer(logits.to(other), image)
        assert found.dtype == other
        torch.testing.assert_close(found.float(), wanted, atol=0.02, rtol=0)


def test_states_of_other_layers():
    layer = crf_nn.DenseCRF(3, TERMS)
    other = crf_nn.DenseCRF(3, [Pairwise(Spatial(2.0), Diagonal([1.0, 1.0, 1.0]))])
    with pytest.raises(RuntimeError, match=r"terms\.1\.weight"):
        layer.load_state_dict(other.state_dict())


@pytest.mark.parametrize("kind", LOSSES)
def test_bad_tensors_for_losses(kind):
    logits, _, labels = some_batch()
    loss = kind()
    assert "logits must be a tensor, got ndarray" in refusal(loss, logits.numpy(), labels)
    assert "floating-point" in refusal(loss, logits.long(), labels)
    assert "floating-point" in refusal(loss, labels, logits)
    assert "real numbers" in refusal(loss, logits.to(torch.complex64), labels)
    assert "at least one point" in refusal(loss, logits[:0], labels[:0])
    for wrong in (logits[0, 0], logits[0, 0, 0], logits[0, 0, 0, 0]):
        assert "logits must have shape (B, L, *grid)" in refusal(loss, wrong, labels)
    for wrong, name in ((labels.numpy(), "ndarray"), (labels.tolist(), "list"), (None, "NoneType")):
        assert f"labels must be a tensor, got {name}" in refusal(loss, logits, wrong)
    for wrong in (labels.float(), labels.double()):
        assert "labels must be whole numbers" in refusal(loss, logits, wrong)
    for wrong in (labels[:, None], labels[:, :-1], labels.reshape(-1)):
        assert "for logits (B, L, *grid) of shape (2, 3, 4, 5)" in refusal(loss, logits, wrong)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 3.0]])
@pytest.mark.parametrize("void", [255, None])
def test_labels_out_of_range(kind, weights, void):
    logits, _, labels = some_batch()
    for value in (3, -1, -100):
        loss = kind(weights=weights, void=void)
        message = refusal(loss, logits, with_value(labels, value, 1, 2, 3))
        assert f"0..2 (void: {void}), got {value} at index (1, 2, 3)" in message


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_weights_of_another_number_of_labels(kind, n):
    logits, _, labels = some_batch()
    assert "weights must have 3 numbers" in refusal(kind(weights=np.ones(n)), logits, labels)


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


def test_probabilities_where_logits_belong():
    logits, image, labels = some_batch()
    layer = crf_nn.DenseCRF(3, TERMS, output="marginals")
    marginals = layer(logits, image)
    for call in (
        lambda: crf_nn.LogLikelihood()(marginals, labels), lambda: layer(marginals, image),
        lambda: crf_nn.PairwiseEnergy(layer)(marginals, image),
    ):
        with pytest.warns(UserWarning, match="look like probabilities"):
            call()
    crf_nn.LogLikelihood()(marginals.log(), labels)
    crf_nn.LogLikelihood()(torch.zeros_like(logits), labels)


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
    logits, image, labels = some_batch()
    layer = crf_nn.DenseCRF(3, TERMS)
    whole = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="image must have shape"):
        whole(logits, image[..., :-1])
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager")
    assert "logits must be a tensor" in refusal(compiled, logits.numpy(), image)
    assert "image must be a tensor" in refusal(compiled, logits, image.numpy())
    assert "image must be given" in refusal(compiled, logits)
    assert "must be finite" in refusal(compiled, logits, with_value(image, np.nan, 0, 0, 0, 0))
    loss = torch.compile(crf_nn.LogLikelihood(), backend="aot_eager")
    assert "labels must be whole numbers" in refusal(loss, logits, labels.float())
    assert loss(logits, labels).item() == pytest.approx(
        crf_nn.LogLikelihood()(logits, labels).item()
    )


def test_layers_without_numbers_can_be_made():
    with torch.device("meta"):
        assert crf_nn.DenseCRF(3, TERMS).terms[0].weight.is_meta
