import torch

from calibrant.training.reproducibility import derive_seed, seeded


def test_seeds_differ_by_purpose_and_epoch_and_stay_the_same():
    seeds = {derive_seed(seed, purpose, epoch) for seed in range(5) for purpose in ("a", "b") for epoch in range(50)}
    assert len(seeds) == 500
    assert all(0 <= seed < 2**63 for seed in seeds)
    # A run of an older version is continued with the same draws.
    assert derive_seed(0, "augment", 1) == 53880708387144553


def test_words_cannot_run_into_each_other():
    assert derive_seed(1, "a", 12) != derive_seed(1, "a", 1, 2) != derive_seed(11, "a", 2)


def test_a_seeded_block_repeats_itself_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    with seeded(3, "x"):
        first = torch.rand(4)
    torch.testing.assert_close(torch.get_rng_state(), before)
    torch.rand(3)
    with seeded(3, "x"):
        assert torch.equal(torch.rand(4), first)
