"""Pointer scores against the formula, on a CPU and by the kernels of a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diffusionner.model.pointer import pointer_scores

SHAPES = [(1, 1, 1, 8), (2, 7, 5, 40), (3, 60, 33, 384), (1, 180, 17, 1024)]


def random_inputs(shape: tuple[int, int, int, int], dtype: torch.dtype) -> list[torch.Tensor]:
    batch, spans, words, size = shape
    torch.manual_seed(sum(shape))
    sizes = ((batch, words, size), (batch, spans, size), (size,))
    return [torch.randn(one).to(dtype).requires_grad_() for one in sizes]


def formula(words: torch.Tensor, spans: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Compute the scores span by span and word by word."""
    scores = torch.zeros(len(words), spans.shape[1], words.shape[1], dtype=words.dtype)
    for b, q, m in np.ndindex(*scores.shape):
        scores[b, q, m] = (words[b, m] + spans[b, q]).clamp(min=0) @ weight
    return scores


@pytest.mark.parametrize("with_gradients", [True, False])
@pytest.mark.parametrize("sign", [0, 1, -1])
@pytest.mark.parametrize("shape", SHAPES[:2])
def test_scores_equal_the_formula(shape, sign, with_gradients):
    words, spans, weight = random_inputs(shape, torch.float32)
    if sign:
        weight = sign * weight.abs()
    with torch.set_grad_enabled(with_gradients):
        found = pointer_scores(words, spans, weight, torch.full((shape[0],), shape[2]))
    expected = formula(words.double(), spans.double(), weight.double())
    assert torch.allclose(found.double(), expected, atol=1e-4)
    assert found.requires_grad == with_gradients


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_gradients_equal_those_of_the_formula(shape):
    given = random_inputs(shape, torch.float32)
    with torch.no_grad():
        given[0][..., 0] = -9.0  # a unit that is never active
    exact = [one.detach().double().requires_grad_() for one in given]
    lengths = torch.full((shape[0],), shape[2])
    words, spans, weight = exact
    expected = (words[:, None] + spans[:, :, None]).clamp(min=0) @ weight
    gradient = torch.randn_like(expected)
    pointer_scores(*given, lengths).backward(gradient.float())
    expected.backward(gradient)
    for one, other in zip(given, exact, strict=True):
        assert (one.grad.double() - other.grad).norm() < 1e-5 * (other.grad.norm() + 1e-9)
        assert not one.grad[..., 0].any(), "rounding errors would be amplified by Adam"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels need a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_equal_the_formula(shape, dtype):
    given = random_inputs(shape, dtype)
    on_gpu = [one.detach().cuda().requires_grad_() for one in given]
    exact = [one.detach().double().requires_grad_() for one in given]
    lengths = torch.arange(shape[0]) * 16 % shape[2] + 1
    found, expected = pointer_scores(*on_gpu, lengths.cuda()), pointer_scores(*exact, lengths)
    assert found.dtype == torch.float32
    inside = (torch.arange(shape[2]) < lengths[:, None])[:, None]
    found = torch.where(inside.cuda(), found, 0.0)
    expected = torch.where(inside, expected, 0.0)
    gradient = torch.randn_like(expected)
    found.backward(gradient.float().cuda())
    expected.backward(gradient)
    pairs = [(found, expected), *((a.grad, b.grad) for a, b in zip(on_gpu, exact, strict=True))]
    for one, other in pairs:
        difference = (one.double().cpu() - other).norm() / other.norm()
        assert difference < (1e-5 if one.dtype == torch.float32 else 5e-3)
