import json
import subprocess

import PIL
import torch

import calibrant
from calibrant.training import reproducibility
from calibrant.training.reproducibility import describe_environment, git_commit


def test_the_environment_is_plain_values_without_names_of_people_or_machines(monkeypatch):
    monkeypatch.setenv("CALIBRANT_COMMIT", "abc123")
    found = describe_environment()
    assert json.loads(json.dumps(found)) == found
    assert (found["torch"], found["calibrant"], found["commit"]) == (torch.__version__, calibrant.__version__, "abc123")
    assert found["pillow"] == PIL.__version__
    assert "/" not in json.dumps(found)


def test_a_copy_inside_somebody_elses_repository_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.delenv("CALIBRANT_COMMIT", raising=False)
    package = tmp_path / "lib" / "calibrant"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(reproducibility, "__file__", str(package / "__init__.py"))
    assert git_commit() is None

    def git(*words):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True, text=True)

    git("init")
    git("commit", "--allow-empty", "-m", "theirs")
    assert git_commit() is None
    git("add", ".")
    git("commit", "-m", "ours")
    assert git_commit() == git("rev-parse", "HEAD").stdout.strip()
