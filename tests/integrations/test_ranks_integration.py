"""Two gloo processes in each framework against one process with the global batch."""

import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("rank_program.py")


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_two_processes_are_one_with_the_global_batch(framework, python, tmp_path):
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(PROGRAM)]
    command += [framework, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "unbiased is the plain loop, resumed too" in done.stdout
    assert "infobatch is the plain loop, resumed too" in done.stdout
    if framework == "lightning":
        refused = "the training loader must have the sampler pruner.sampler(), got DistributedSamplerWrapper."
        assert refused in done.stdout
        assert "val is whole: 451 cases" in done.stdout
        assert "test is whole: 447 cases" in done.stdout
