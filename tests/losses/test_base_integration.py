"""Two and three processes see what one process with the whole batch sees, in value and in gradient."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture(scope="module")
def worker():
    sys.path.insert(0, str(WORKER.parent))
    try:
        spec = importlib.util.spec_from_file_location("loss_worker", WORKER)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(WORKER.parent))
    return module


def run_ranks(world_size, folder, python):
    """Results of each rank: name to gradient and value."""
    arguments = [
        [str(world_size), str(folder / "rendezvous"), str(folder / f"{rank}.npz")] for rank in range(world_size)
    ]
    commands = [[python, str(WORKER), str(rank), *rest] for rank, rest in enumerate(arguments)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    results = []
    for rank in range(world_size):
        with np.load(folder / f"{rank}.npz") as file:
            results.append({name.replace("|", "/"): file[name] for name in file})
    return results


@pytest.mark.parametrize("world_size", [2, 3])
def test_value_and_gradient_are_those_of_one_process(world_size, worker, tmp_path, python):
    ranks = run_ranks(world_size, tmp_path, python)
    # d2/ds2 s^3 = 6 s; each of the two backward passes sums over the ranks.
    second = 6 * sum(range(1, world_size + 1)) * world_size**2
    assert [results.pop("second").tolist() for results in ranks] == [[second, second]] * world_size
    # Every loss, equal and unequal shards, two types; one compiled sum.
    assert len(ranks[0]) == 4 * len(worker.CASES) + 1
    for name in ranks[0]:
        loss, _, dtype = name.split("/")
        exact = dtype == "torch.float64"
        model, *batch = worker.make_problem(torch.float64 if exact else torch.float32)
        expected = worker.backward(model, worker.CASES[loss][0], *batch)
        for results in ranks:
            scale = np.abs(expected).max()
            np.testing.assert_allclose(
                results[name], expected, rtol=1e-6, atol=(1e-12 if exact else 1e-6) * scale, err_msg=name
            )
            assert results[name][-1] == pytest.approx(expected[-1], rel=1e-12 if exact else 1e-6), name
