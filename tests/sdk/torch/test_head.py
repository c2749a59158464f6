"""The head: order, calibration, and what it makes of its inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

torch = pytest.importorskip("torch")

from tape2048.torch.critic import CriticHead  # noqa: E402 - after the skip

TILES = (4096, 8192, 16384, 32768)
shares = st.floats(1e-4, 1 - 1e-4)


def logit(p: float) -> float:
    return math.log(p / (1 - p))


@given(
    seed=st.integers(0, 2**32), scale=st.floats(0, 1e4), hidden=st.sampled_from([None, 3])
)  # fmt: skip
@settings(max_examples=60)
def test_ordered_probabilities_never_rise_with_the_threshold(
    seed: int, scale: float, hidden: int | None
) -> None:
    torch.manual_seed(seed)
    head = CriticHead(5, TILES, hidden, ordered=True)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter) * scale)
    logits = head(torch.randn(33, 5) * scale)
    assert bool((logits[:, 1:] <= logits[:, :-1]).all())


def test_a_plain_head_may_rise() -> None:
    """What the test above would see without the order."""
    torch.manual_seed(0)
    logits = CriticHead(5, TILES)(torch.randn(33, 5))
    assert bool((logits[:, 1:] > logits[:, :-1]).any())


@pytest.mark.parametrize("ordered", [False, True])
def test_the_linear_probe_is_linear(*, ordered: bool) -> None:
    torch.manual_seed(1)
    head = CriticHead(6, TILES, ordered=ordered)
    x = torch.randn(9, 6)
    raw = x.numpy() @ head.last.weight.detach().numpy().T + head.last.bias.detach().numpy()
    if ordered:
        falls = np.log1p(np.exp(raw[:, 1:]))
        raw[:, 1:] = raw[:, :1] - np.cumsum(falls, axis=1)
    np.testing.assert_allclose(head(x).detach().numpy(), raw, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hidden", [None, 4])
def test_inputs_are_cast_inside(hidden: int | None) -> None:
    head = CriticHead(8, TILES, hidden).eval()
    x = torch.randn(5, 8).to(torch.bfloat16)
    assert torch.equal(head(x), head(x.float()))
    assert head(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(x), head(x.float())), "autocast stays outside"


@given(st.lists(shares, min_size=4, max_size=4), st.booleans(), st.sampled_from([None, 3]))
@settings(max_examples=40)
def test_it_begins_with_the_prior(prior: list[float], ordered: bool, hidden: int | None) -> None:
    if ordered:
        prior = sorted(prior, reverse=True)
    head = CriticHead(3, TILES, hidden, ordered=ordered)
    head.set_prior(prior)
    found = torch.sigmoid(head(torch.randn(2, 3))).detach().numpy()
    # The ordered form keeps equal ones a thousandth of a logit apart.
    np.testing.assert_allclose(found, [prior, prior], atol=2e-3)


def test_the_prior_of_what_never_happened_is_finite() -> None:
    head = CriticHead(3, TILES)
    head.set_prior([1.0, 0.5, 0.0, 0.0])
    found = torch.sigmoid(head(torch.randn(2, 3))).detach().numpy()[0]
    assert found[0] > 0.9999
    assert 0 < found[3] < 0.0001


@given(st.lists(shares, min_size=4, max_size=4), st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4))
@settings(max_examples=40)
def test_a_weight_is_folded_back(truth: list[float], weights: list[float]) -> None:
    """What minimises the weighted loss of rows with these probabilities becomes these probabilities."""
    head = CriticHead(2, TILES)
    minimum = [logit(p * w / (p * w + 1 - p)) for p, w in zip(truth, weights, strict=True)]
    with torch.no_grad():
        head.last.weight.zero_()
        head.last.bias.copy_(torch.tensor(minimum))
    head.fold_pos_weight(weights)
    found = torch.sigmoid(head(torch.zeros(1, 2)).double()).detach().numpy()[0]
    np.testing.assert_allclose(found, truth, atol=1e-4)


def test_the_ordered_form_has_nothing_to_fold() -> None:
    with pytest.raises(ValueError, match="nothing to fold"):
        CriticHead(2, TILES, ordered=True).fold_pos_weight([1.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((0, TILES), {}),
        ((3, TILES, 0), {}),
        ((3, (100,)), {}),
        ((3, (16384, 8192)), {"ordered": True}),
        ((3, TILES), {"dropout": 1.0}),
    ],
)
def test_what_cannot_be_is_refused(args: tuple, options: dict) -> None:
    with pytest.raises(ValueError, match="expected"):
        CriticHead(*args, **options)


@pytest.mark.parametrize("weights", [[1.0], [1, 1, 1, 0], [1, 1, 1, math.inf], [1, 1, 1, math.nan]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        CriticHead(3, TILES).fold_pos_weight(weights)
