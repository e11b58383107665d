"""A callback that ends a training calibrated, against the same done by hand."""

import logging
import warnings

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant import Predictions, evaluate
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.integrations.any_loop import judge
from calibrant.integrations.lightning import CalibrationCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
PIXELS, LABELS = (torch.tensor(part) for part in load_digits(return_X_y=True))
IMAGES = (PIXELS / 16).float()


def loader(first, last):
    return DataLoader(TensorDataset(IMAGES[first:last], LABELS[first:last]), batch_size=100)


class Classifier(pl.LightningModule):
    def __init__(self, entries=("logits", "targets")):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.entries = nn.Linear(64, 10), entries

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, _, dataloader_idx=0):
        return dict(zip(self.entries, (self.net(batch[0]), batch[1]), strict=True))

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def trainer_with(callback, **options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(
        **{"max_epochs": 2, "accelerator": "cpu", "enable_model_summary": False, **quiet, **options},
        callbacks=[callback],
    )


@pytest.fixture(autouse=True)
def _no_advice():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        yield


def by_hand(model, first, last):
    with torch.no_grad():
        return Predictions.from_logits(model.net(IMAGES[first:last]), LABELS[first:last])


def test_it_is_what_a_person_would_do_by_hand(tmp_path):
    callback = CalibrationCallback(tmp_path / "out", target_accuracy=0.9, class_names=list("0123456789"))
    trainer, model = trainer_with(callback), Classifier()
    trainer.fit(model, loader(0, 900), [loader(900, 1350), loader(0, 50)])
    validation, test = by_hand(model, 900, 1350), by_hand(model, 1350, 1797)
    expected = judge(tmp_path / "hand", validation, test, target_accuracy=0.9)
    assert callback.judgement.policy.calibrator.temperature_ == pytest.approx(
        expected.policy.calibrator.temperature_, rel=1e-6
    )
    assert callback.judgement.raw == evaluate(validation.split(100 / 450)[1])  # no test cases yet
    assert not (tmp_path / "out" / "predictions" / "test.npz").exists()

    (logged,) = trainer.test(model, loader(1350, 1797), verbose=False)
    assert callback.judgement.policy.rule.threshold == pytest.approx(expected.policy.rule.threshold, rel=1e-6)
    assert logged["test/ece"] == pytest.approx(expected.raw.ece, rel=1e-5)
    assert logged["test/nll_calibrated"] == pytest.approx(expected.calibrated.nll, rel=1e-5)
    kept = Predictions.load(tmp_path / "out" / "predictions" / "test.npz")
    np.testing.assert_allclose(kept.logits, test.logits, rtol=1e-5)
    assert kept.class_names == tuple("0123456789")
    assert (tmp_path / "out" / "report.html").is_file()


def test_weights_that_were_not_validated_get_no_temperature(tmp_path):
    callback = CalibrationCallback(tmp_path / "out")
    trainer, model = trainer_with(callback, check_val_every_n_epoch=2, max_epochs=3), Classifier()
    with pytest.warns(CalibrantWarning, match="the last validation was before the last step"):
        trainer.fit(model, loader(0, 300), loader(900, 1350))
    with pytest.warns(CalibrantWarning, match="there is no validation of these weights"):
        trainer.test(model, loader(1350, 1797), verbose=False)
    assert callback.judgement is None
    assert not (tmp_path / "out").exists()
    trainer.validate(model, loader(900, 1350), verbose=False)
    assert callback.judgement.raw == evaluate(by_hand(model, 900, 1350).split(100 / 450)[1])
    with torch.no_grad():
        model.net.bias += torch.arange(10)  # as another checkpoint would have it
    with pytest.warns(CalibrantWarning, match="there is no validation of these weights"):
        trainer.test(model, loader(1350, 1797), verbose=False)


def test_cases_that_teach_nothing_do_not_end_the_training(tmp_path):
    callback = CalibrationCallback(tmp_path)
    with pytest.warns(CalibrantWarning, match="targets must"):
        trainer_with(callback).fit(Classifier(), loader(0, 100), loader(900, 902))
    assert callback.judgement is None


def test_a_step_that_returns_something_else_is_refused(tmp_path):
    trainer = trainer_with(CalibrationCallback(tmp_path))
    with pytest.raises(InvalidInput, match=r"^validation_step must return .* got \['labels', 'logits'\]"):
        trainer.fit(Classifier(("logits", "labels")), loader(0, 100), loader(900, 960))
    with pytest.raises(InvalidInput, match=r"^target_accuracy must"):
        CalibrationCallback(tmp_path, target_accuracy=2)


def test_rows_of_several_processes_come_in_the_order_of_the_dataset():
    from calibrant.integrations.lightning import _interleaved

    rows = torch.arange(7)
    dataset = TensorDataset(rows)
    padded = [torch.tensor([0, 3, 6]), torch.tensor([1, 4, 0]), torch.tensor([2, 5, 1])]  # DistributedSampler's
    assert torch.equal(_interleaved(padded, DataLoader(dataset)), rows)
    unpadded = [torch.tensor([0, 3, 6]), torch.tensor([1, 4]), torch.tensor([2, 5])]  # Lightning's for testing
    assert torch.equal(_interleaved(unpadded, [DataLoader(dataset)]), rows)
