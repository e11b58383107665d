"""A cluster of two nodes on this machine: a study that loses one of them, folders of parts, and bad addresses."""

import contextlib
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from calibrant import Predictions, evaluate
from calibrant.errors import InvalidInput, invalid
from calibrant.metrics import evaluate_parts
from calibrant.scale import Task, make_executor, run_tasks
from calibrant.studies import Study, StudySpec, Sweep, SweepSpec, run_sweep
from calibrant.studies.records import digests
from calibrant.training import train

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'calibrant[ray]'")

pytestmark = pytest.mark.ray
ON_RAY = ("--executor", "ray")


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with two cores each."""
    from ray.cluster_utils import Cluster

    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 2}
    small = {"object_store_memory": 80 * 2**20, "num_cpus": 2}
    made = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False, "_system_config": quick})
    made.add_node(**small)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def on_ray(cluster):
    with make_executor("ray", address=cluster.address) as executor:
        yield executor


def test_a_study_that_loses_a_node_ends_with_the_numbers_of_an_undisturbed_one(cluster, on_ray, tmp_path):
    recipe = {"epochs": 6, "engine.accelerator": "cpu"}
    spec = StudySpec(methods=("nll", "flsd"), seeds=(0, 1, 2), data=("digits",), models=("tiny",), recipe=recipe)
    study = Study(tmp_path / "study", spec)
    ended = threading.Event()
    killer = threading.Thread(target=_kill_in_the_middle, args=(cluster.worker_nodes.copy().pop(), study, ended))
    killer.start()
    try:
        study.run(executor=on_ray)
    finally:
        ended.set()
        killer.join()
    assert len(study.finished()) == len(study.runs) == 6
    for planned in study.runs:
        undisturbed = train(planned.recipe, tmp_path / "undisturbed" / planned.name)
        assert study.record(planned).predictions_sha256 == digests(undisturbed), planned.name
    logs = [(study.path / "logs" / f"{planned.name}.log").read_text() for planned in study.runs]
    assert any("going on after epoch" in log for log in logs)
    assert all("epoch 6/6" in log for log in logs)


def _kill_in_the_middle(node, study, ended):
    """Kill a node as soon as a cell that runs on it has a checkpoint."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    folders = {str(study.folder(planned)): study.folder(planned) for planned in study.runs}
    while not ended.wait(0.02):
        with contextlib.suppress(psutil.NoSuchProcess):
            words = {word for child in raylet.children(recursive=True) for word in child.cmdline()}
            if any(any(folders[word].glob("checkpoints/*.safetensors")) for word in words & folders.keys()):
                # The cells are not killed: they have to end with their workers by themselves.
                for process in [*raylet.children(), raylet]:
                    process.kill()
                return


def test_parts_on_a_cluster_give_the_numbers_of_one_machine(on_ray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the nodes were started in another folder
    whole = _write_parts(Path("parts"))
    found = evaluate_parts("parts", executor=on_ray).values()
    assert found == pytest.approx(evaluate(whole).values(), rel=1e-12)


def _write_parts(folder):
    """4,000 predictions in two files of different size; returns all of them."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(4000, 3))
    targets = (logits + 2 * rng.gumbel(size=logits.shape)).argmax(axis=1)
    whole = Predictions.from_logits(logits, targets, ids=np.arange(4000))
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(4000), [1500])):
        whole.subset(part).save(folder / f"{number}.parquet")
    return whole


def test_a_sweep_searches_in_workers_of_the_cluster(on_ray, tmp_path):
    spec = SweepSpec(data="digits", model="tiny", recipe={"epochs": 1, "engine.accelerator": "cpu"}, search=("drop",))
    sweep = Sweep(tmp_path / "sweep", spec)
    run_sweep(sweep, trials=1, jobs=1, executor=on_ray).raise_failures()
    assert len(sweep.finished()) == 1


def test_faults_come_home_as_one_line(on_ray, tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match="be the same file on"):
        on_ray.check_shared(_Nowhere(tmp_path / "study.toml"))
    with pytest.raises(InvalidInput, match="value must be 1, got 2"):
        list(on_ray.map(_only_one, [1, 2]))
    # The nodes were started in another folder: modules and logs are looked for where the command was given.
    monkeypatch.chdir(tmp_path)
    Path("dying.py").write_text("import sys; sys.exit('calibrant: data must exist.')")
    tasks = [Task("cell", "dying", (), Path("logs/cell.log"))]
    (one,) = run_tasks(tasks, executor=on_ray)
    assert (one.code, one.message) == (1, "data must exist.")
    assert (tmp_path / "logs" / "cell.log").is_file()
    with pytest.raises(InvalidInput, match="cluster must have a machine with 1 GPUs for cell"):
        run_tasks([replace(tasks[0], accelerator="cuda")], executor=on_ray)


def test_an_item_whose_worker_is_lost_is_done_again(on_ray, tmp_path):
    items = [(number, tmp_path / "lost" if number == 2 else None) for number in range(4)]
    assert list(on_ray.map(_lost_once, items)) == [0, 1, 4, 9]
    assert (tmp_path / "lost").exists()
    # Ray's remarks on it would stand on standard output.
    assert os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] == "."


def _lost_once(item):
    number, marker = item
    if marker is not None and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2


def _only_one(value):
    if value != 1:
        raise invalid("value", "be 1", value)
    return value


class _Nowhere(type(Path())):
    """A file that only this machine sees."""

    def stat(self, **_):
        return Path(__file__).stat()
