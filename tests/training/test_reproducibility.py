import json
import subprocess

import PIL
import torch

import calibrant
from calibrant.training import reproducibility
from calibrant.training.reproducibility import derive_seed, describe_environment, git_commit, seeded


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


def test_the_environment_is_plain_values_without_names_of_people_or_machines(monkeypatch):
    monkeypatch.setenv("CALIBRANT_COMMIT", "abc123")
    found = describe_environment()
    assert json.loads(json.dumps(found)) == found
    assert (found["torch"], found["calibrant"], found["commit"]) == (torch.__version__, calibrant.__version__, "abc123")
    assert found["pillow"] == PIL.__version__
    assert "/" not in json.dumps(found)


def test_a_copy_inside_somebody_elses_repository_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.delenv("CALIBRANT_COMMIT", raising=False)
    package = tmp_path / "lib" / "calibrant"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(reproducibility, "__file__", str(package / "__init__.py"))
    assert git_commit() is None

    def git(*words):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True, text=True)

    git("init")
    git("commit", "--allow-empty", "-m", "theirs")
    assert git_commit() is None
    git("add", ".")
    git("commit", "-m", "ours")
    assert git_commit() == git("rev-parse", "HEAD").stdout.strip()
