import importlib.util
import os
import subprocess
import time
from pathlib import Path

import pytest

from calibrant.studies import Sweep, SweepSpec

TRIALS = 4


def load_server():
    spec = importlib.util.spec_from_file_location("postgres_server", Path(__file__).with_name("postgres_server.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.server


@pytest.mark.postgres
def test_two_workers_share_one_study_on_a_real_server(tmp_path, python):
    """The trials that were asked for, by both workers, each with a folder of its own as on two machines."""
    spec = SweepSpec(recipe={"epochs": 2}, search=("drop=0.3:0.8",), name="shared")
    places = [tmp_path / name for name in "ab"]
    with load_server()() as url:
        for place in places:
            Sweep(place, spec, storage=url)
        workers = start_together(url, places, python)
        codes = [worker.wait() for worker in workers]
        assert codes == [0, 0], [(place / "said").read_text() for place in places]
        sweep = Sweep(places[0], spec, storage=url)
        finished = sweep.finished()
        assert TRIALS <= len(finished) <= TRIALS + 1  # both may begin the last one at the same moment
        runs = {place: {path.name for path in (place / "runs").iterdir()} for place in places}
        assert all(runs.values())
        assert set.union(*runs.values()) == {trial.user_attrs["run"] for trial in finished}
        assert sweep.front()


def start_together(url, places, python):
    """Both workers wait at the table of trials until the slower one has started: neither can do all the work alone."""
    import psycopg

    environment = {**os.environ, "CALIBRANT_STORAGE": url}
    with psycopg.connect(url.replace("+psycopg", "")) as gate, gate.cursor() as cursor:
        cursor.execute("LOCK TABLE trials IN ACCESS EXCLUSIVE MODE")
        workers = []
        for place in places:
            command = [python, "-m", "calibrant.studies", "search", str(place), str(TRIALS)]
            with (place / "said").open("wb") as said:
                workers.append(
                    subprocess.Popen(
                        command, env=environment, stdin=subprocess.PIPE, stderr=said, start_new_session=True
                    )
                )
        ends = time.monotonic() + 120
        waiting = 0
        while waiting < len(places):
            assert time.monotonic() < ends, "the workers did not arrive"
            assert all(worker.poll() is None for worker in workers), [(p / "said").read_text() for p in places]
            waiting = cursor.execute("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted").fetchone()[0]
            time.sleep(0.05)
    return workers
