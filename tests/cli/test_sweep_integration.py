import json


def test_two_workers_started_by_one_command_share_the_trials(calibrant, tmp_path):
    flags = ("--search", "drop=0.3:0.8", "--epochs", 2, "--set", "optimiser.batch_size=128", "--trials", 2, "--jobs", 2)
    code, out, said = calibrant("sweep", *flags, "--method", "nll+unbiased", "--out", tmp_path, "--json")
    assert code == 0, said
    content = json.loads(out)
    assert len(content["finished"]) + len(content["stopped"]) == 2
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"worker-1.log", "worker-2.log"}
