import pytest

from calibrant.errors import InvalidInput
from calibrant.training import paper_recipe
from calibrant.training.settings import check_inputs


@pytest.mark.parametrize("model", ["tiny", "resnet50", "my_networks:small", "numpy:array"])
def test_what_exists_passes(model, tmp_path, monkeypatch):
    (tmp_path / "my_networks.py").write_text("raise RuntimeError('not to be run by a check')")
    (tmp_path / "images.npz").touch()
    (tmp_path / "pictures").mkdir()
    monkeypatch.chdir(tmp_path)
    names = ("digits", "arrays:images.npz", "folder:pictures?size=32")
    check_inputs([paper_recipe(name, model__name=model) for name in names])


@pytest.mark.parametrize("data", ["arrays:", "arrays:pictures", "folder:images.npz", "cifar"])
def test_what_does_not_exist_is_refused(data, tmp_path, monkeypatch):
    (tmp_path / "images.npz").touch()
    (tmp_path / "pictures").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="data must name"):
        check_inputs([paper_recipe("digits"), paper_recipe(data)])


def test_data_of_a_module_that_is_not_there_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"importable, got 'digits'\. A known one has no colon"):
        check_inputs([paper_recipe("digits:x")])
