"""Processes that somebody else started, by their environment."""

import pytest

from calibrant.errors import InvalidInput
from calibrant.training.cluster import Started, launched_by_srun, started_layout, torchrun_variables
from calibrant.training.speaking import is_first_process

_TASK = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08,11],cpu1",
    "SLURM_JOB_ID": "81234",
    "SLURM_STEP_ID": "0",
}
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def environment(monkeypatch):
    """Sets variables; none of a launcher is there before."""

    def put(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    for name in (*_TASK, *_RANKS, "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "")  # so that whatever is set later is undone
        monkeypatch.delenv(name)
    return put


def test_a_task_of_srun_is_a_rank_of_torch(environment):
    environment(**_TASK)
    assert launched_by_srun()
    assert not is_first_process()
    assert started_layout() == Started(devices=4, nodes=2)
    made = torchrun_variables(_TASK)
    assert [made[name] for name in _RANKS[:6]] == ["5", "1", "8", "4", "1", "gpu07"]
    # All tasks of a step meet at one place; another step of the job, and another job, meet elsewhere.
    first = torchrun_variables(_TASK | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"})
    assert first["MASTER_PORT"] == made["MASTER_PORT"]
    others = [
        torchrun_variables(_TASK | change)["MASTER_PORT"]
        for change in ({"SLURM_STEP_ID": "1"}, {"SLURM_JOB_ID": "81235"})
    ]
    assert len({made["MASTER_PORT"], *others}) == 3
    mine = torchrun_variables(_TASK | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"})
    assert (mine["MASTER_ADDR"], mine["MASTER_PORT"]) == ("10.0.0.1", "4000")
    one_machine = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "8"}
    assert torchrun_variables(_TASK | one_machine)["MASTER_ADDR"] == "127.0.0.1"
    for nodes, host in (("n1,n2", "n1"), ("n[3]", "n3"), ("n-a[10,12]", "n-a10"), ("n-a n-b", "n-a")):
        assert torchrun_variables(_TASK | {"SLURM_STEP_NODELIST": nodes})["MASTER_ADDR"] == host


@pytest.mark.parametrize("more", [{}, {"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}])
def test_a_script_alone_is_one_process(environment, more):
    environment(**more)
    assert started_layout() is None
    assert is_first_process()


def test_torchrun_inside_a_job_wins(environment):
    ranks = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    environment(**_TASK, **ranks, TORCHELASTIC_RUN_ID="x")
    assert started_layout() == Started(devices=2, nodes=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "5,3"}, r"the same number of tasks on every node, got 8 on 2 \(5,3\)"),
        ({"SLURM_STEP_NUM_TASKS": "7"}, "got 7 on 2"),
        ({"SLURM_STEP_NODELIST": ""}, "needs SLURM_STEP_NODELIST, or MASTER_ADDR"),
        ({"SLURM_LOCALID": None}, "srun must set SLURM_LOCALID for each task"),
    ],
)
def test_what_srun_cannot_mean_is_one_line(change, message):
    task = {name: value for name, value in {**_TASK, **change}.items() if value is not None}
    with pytest.raises(InvalidInput, match=message) as caught:
        torchrun_variables(task)
    assert "\n" not in str(caught.value)
