import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant.training.data import augment, draw_augmentation, normalise


def augment_slowly(images, offsets, flips, padding):
    """One image at a time with NumPy: pad, cut, mirror."""
    result = []
    for image, (top, left), flip in zip(images.numpy(), offsets.tolist(), flips.tolist(), strict=True):
        padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
        cut = padded[:, top : top + image.shape[1], left : left + image.shape[2]]
        result.append(cut[:, :, ::-1] if flip else cut)
    return np.stack(result)


@given(
    n=st.integers(1, 6),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    padding=st.integers(0, 4),
    flip=st.booleans(),
    dtype=st.sampled_from([torch.uint8, torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_augment_equals_cutting_one_by_one(n, channels, height, width, padding, flip, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, channels, height, width), generator=generator).to(dtype)
    offsets, flips = draw_augmentation(n, padding, flip, generator, "cpu")
    result = augment(images, offsets, flips, padding)
    assert result.dtype == dtype
    assert result.is_contiguous()
    expected = augment_slowly(images.float(), offsets, flips, padding)
    np.testing.assert_array_equal(result.float().numpy(), expected)


def test_the_middle_offset_without_a_flip_changes_nothing():
    images = torch.arange(48, dtype=torch.uint8).view(2, 2, 4, 3)
    assert torch.equal(augment(images, torch.full((2, 2), 4), torch.zeros(2, dtype=torch.bool), 4), images)


def test_draws_every_offset_evenly_and_half_of_the_flips():
    offsets, flips = draw_augmentation(50_000, 2, True, torch.Generator().manual_seed(0), "cpu")
    counts = torch.bincount(offsets[:, 0] * 5 + offsets[:, 1], minlength=25).double()
    # Chi-square with 24 degrees of freedom: above 52 has a probability below 0.001.
    assert ((counts - 2000) ** 2 / 2000).sum() < 52
    assert abs(flips.double().mean() - 0.5) < 0.01


def test_without_flip_nothing_is_mirrored_and_the_same_numbers_are_drawn():
    with_flip, without = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    offsets, _ = draw_augmentation(64, 4, True, with_flip)
    others, flips = draw_augmentation(64, 4, False, without)
    assert torch.equal(offsets, others)
    assert not flips.any()
    assert torch.equal(with_flip.get_state(), without.get_state())


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 2**-8)]
)
def test_normalise_equals_the_formula(dtype, tolerance):
    images = torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 3, 16, 16)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    result = normalise(images, mean, std, dtype)
    assert result.dtype == dtype
    exact = (images.numpy() / 255 - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
    np.testing.assert_allclose(result.double().numpy(), exact, rtol=tolerance, atol=tolerance)


def test_normalise_takes_tensors_and_gives_channels_last():
    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.6, 0.7])
    result = normalise(images, mean, std, torch.bfloat16, torch.channels_last)
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(result, normalise(images, mean.tolist(), std.tolist(), torch.bfloat16))


def test_the_whole_chain_compiles_without_a_break():
    def step(images, offsets, flips, mean, std):
        return normalise(augment(images, offsets, flips, 2), mean, std)

    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    arguments = (images, *draw_augmentation(4, 2, True), torch.full((3,), 0.5), torch.full((3,), 0.25))
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arguments), step(*arguments))
