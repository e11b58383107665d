"""Which processes train one run together, by their environment, and work that the first does for all."""

import pytest
from lightning.fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment

from calibrant.errors import InvalidInput, OutputError
from calibrant.training import Reporter
from calibrant.training.launch import (
    group_layout,
    is_first_process,
    joins_a_group,
    on_first_rank,
    resumable,
    start_processes,
)

_TASK = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
}
_RANK = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}


@pytest.fixture
def environment(monkeypatch):
    """Sets variables; those of launchers are removed before."""

    def put(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    for name in (*_TASK, *_RANK):
        monkeypatch.delenv(name, raising=False)
    return put


@pytest.mark.parametrize(
    ("variables", "kind"),
    [(_TASK, SLURMEnvironment), (_RANK, TorchElasticEnvironment), (_TASK | _RANK, TorchElasticEnvironment)],
)
def test_a_process_that_somebody_else_started_joins_its_group(environment, variables, kind):
    environment(variables)
    assert joins_a_group()
    assert not is_first_process()
    cluster, devices, nodes = group_layout()
    assert type(cluster) is kind
    assert (devices, nodes, cluster.global_rank(), cluster.local_rank()) == (4, 2, 5, 1)


@pytest.mark.parametrize("first", [{"RANK": "0", "WORLD_SIZE": "2"}, _TASK | {"SLURM_PROCID": "0"}])
def test_the_first_process_of_a_group_reports(environment, first):
    environment(first)
    assert joins_a_group()
    assert is_first_process()


@pytest.mark.parametrize("variables", [{}, {"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}])
def test_a_script_alone_is_one_process(environment, variables):
    environment(variables)
    assert not joins_a_group()
    assert is_first_process()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SLURM_STEP_NUM_TASKS": "7"}, "the same number of tasks on every node, got 7 tasks on 2 nodes"),
        ({"SLURM_NTASKS_PER_NODE": None}, "Use `--ntasks-per-node=8`"),
    ],
)
def test_tasks_that_srun_spreads_unevenly_are_refused(environment, change, message):
    environment({name: value for name, value in {**_TASK, **change}.items() if value is not None})
    with pytest.raises(InvalidInput, match=message):
        group_layout()


class FakeFabric:
    """Two ranks in one process: the second gets what the first sent before it."""

    world_size = 2

    def __init__(self, rank, channel):
        self.global_rank, self._channel = rank, channel

    def broadcast(self, value):
        if self.global_rank == 0:
            self._channel.append(value)
        return self._channel[-1]


def test_all_ranks_get_the_result_or_the_error_of_the_first():
    channel = []
    assert on_first_rank(FakeFabric(0, channel), lambda: 5) == 5
    assert on_first_rank(FakeFabric(1, channel), lambda: pytest.fail("not the first")) == 5

    def full():
        raise OutputError("the disk is full")

    for rank in (0, 1):
        with pytest.raises(OutputError, match="the disk is full"):
            on_first_rank(FakeFabric(rank, channel), full)


@pytest.mark.parametrize(("file", "message"), [(None, "stopped before anything"), ("recipe.toml", "train --resume")])
def test_an_interrupt_says_how_to_continue(tmp_path, file, message):
    if file is not None:
        (tmp_path / file).touch()
    with pytest.raises(KeyboardInterrupt, match=message), resumable(tmp_path):
        raise KeyboardInterrupt


def refuse(reporter):
    """Fails in every process."""
    raise InvalidInput("epochs must be positive, got 0.")


def test_an_error_in_a_process_is_raised_here(tmp_path):
    with pytest.raises(InvalidInput, match=r"^epochs must be positive, got 0\.$"):
        start_processes(2, refuse, tmp_path, Reporter())
