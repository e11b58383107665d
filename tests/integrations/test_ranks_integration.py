"""Two gloo processes in Lightning against one process with the global batch."""

import subprocess
from pathlib import Path

PROGRAM = Path(__file__).with_name("rank_program.py")


def test_two_processes_are_one_with_the_global_batch(python, tmp_path):
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "unbiased is the plain loop, resumed too" in done.stdout
    assert "infobatch is the plain loop, resumed too" in done.stdout
    refused = "the training loader must have the sampler pruner.sampler(), got DistributedSamplerWrapper."
    assert refused in done.stdout
    assert "val is whole: 451 cases" in done.stdout
    assert "test is whole: 447 cases" in done.stdout
