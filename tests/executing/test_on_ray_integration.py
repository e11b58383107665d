"""A cluster of two nodes on this machine: a study that loses one of them, folders of parts, and bad addresses."""

import threading
import time

import pytest

from calibrant.executing import make_executor
from calibrant.study import Study, StudySpec
from calibrant.study.record import digests
from calibrant.training import train

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'calibrant[ray]'")

pytestmark = pytest.mark.ray


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
    recipe = {"epochs": 5, "engine.accelerator": "cpu"}
    spec = StudySpec(methods=("nll", "flsd"), seeds=(0, 1, 2), data=("digits",), models=("tiny",), recipe=recipe)
    study = Study(tmp_path / "study", spec)
    killer = threading.Thread(target=_kill_a_node_in_the_middle, args=(cluster, study), daemon=True)
    killer.start()
    study.run(executor=on_ray)
    killer.join()
    assert len(study.finished()) == len(study.runs) == 6
    for planned in study.runs:
        undisturbed = train(planned.recipe, tmp_path / "undisturbed" / planned.name)
        assert study.record(planned).predictions_sha256 == digests(undisturbed), planned.name
    logs = [(study.path / "logs" / f"{planned.name}.log").read_text() for planned in study.runs]
    assert any("going on after epoch" in log for log in logs)
    assert all("epoch 5/5" in log for log in logs)


def _kill_a_node_in_the_middle(cluster, study):
    """Once three runs are at work at the same time: at most two of them are on the node that stays."""
    at_work = set()
    while len(at_work) < 3:
        folders = [study.folder(planned) for planned in study.runs]
        begun = [folder for folder in folders if any(folder.glob("checkpoints/*"))]
        at_work = {folder for folder in begun if not (folder / "summary.json").is_file()}
        time.sleep(0.02)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
