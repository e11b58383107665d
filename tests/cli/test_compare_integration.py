import numpy as np


def test_a_failed_run_is_reported_at_the_end_and_the_others_go_on(calibrant, tmp_path):
    """The first data set is no archive; the second one is run and shown all the same."""
    missing = tmp_path / "missing.npz"
    missing.write_text("nothing")
    flags = ("--methods", "nll", "--model", "tiny", "--epochs", 1, "--set", "optimiser.batch_size=32", "--jobs", 2)
    command = ("compare", *flags, "--data", f"arrays:{missing}", "digits", "--out", tmp_path / "study", "--no-page")
    code, out, said = calibrant(*command)
    assert code == 1
    assert "digits, tiny" in out
    assert "1 of 2 runs failed: arrays_missing.npz-tiny-nll-seed0" in said.splitlines()[-1]
    assert said.count("missing.npz must") == 1
    # Once the data is there, only that run is left to do.
    generator = np.random.default_rng(0)
    images, labels = generator.integers(0, 255, (200, 8, 8), np.uint8), np.arange(200) % 4
    np.savez(missing, x_train=images, y_train=labels, x_test=images[:40], y_test=labels[:40])
    code, out, said = calibrant(*command)
    assert code == 0, said
    assert "2 runs, 1 of them finished before, 1 to run" in said
    assert "missing.npz, tiny" in out
