import numpy as np

from calibrant.predictions import Predictions


def test_a_notebook_shows_the_first_rows(tmp_path, notebook_rows):
    logits = np.random.default_rng(0).normal(size=(1207, 3))
    given = Predictions.from_logits(logits, np.arange(1207) % 3, class_names=["<b>cat</b>", "dog & co", "c"])
    given.save(tmp_path / "all.npz")
    for predictions in (given, Predictions.load(tmp_path / "all.npz", mmap=True)):
        html = predictions._repr_html_()
        assert "<b>" not in html
        assert "&lt;b&gt;cat&lt;/b&gt;" in html
        assert f"<caption>{predictions!r}</caption>" in html
        headings, *rows, more = notebook_rows(predictions)
        assert headings == ["row", "target", "predicted", "confidence", "right"]
        assert more[0] == "1,202 more"
        for row, shown in enumerate(rows):
            assert shown == [
                str(row),
                given.class_names[given.targets[row]],
                given.class_names[given.predicted[row]],
                f"{given.confidence[row]:.4f}",
                "yes" if given.correct[row] else "no",
            ]
        assert len(rows) == 5


def test_scores_on_disk_are_not_read_to_be_shown(tmp_path):
    Predictions.from_logits(np.eye(9), np.arange(9)).save(tmp_path / "all.npz")
    predictions = Predictions.load(tmp_path / "all.npz", mmap=True)
    predictions._repr_html_()
    assert "_rows" not in predictions.__dict__


def test_a_few_rows_without_names_are_all_shown(notebook_rows):
    predictions = Predictions.from_probabilities([[0.9, 0.1], [0.4, 0.6]], [0, 0])
    assert notebook_rows(predictions)[1:] == [["0", "0", "0", "0.9000", "yes"], ["1", "0", "1", "0.6000", "no"]]
