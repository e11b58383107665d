"""Hugging Face's Trainer with our losses against a plain loop, and our metrics in it."""

import json

import integration_task as task
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from calibrant import Predictions, evaluate
from calibrant.errors import InvalidInput
from calibrant.integrations.transformers import calibration_metrics, predictions_of, trainer_loss
from calibrant.losses import CrossEntropy

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()


class Digits(Dataset):
    """Dictionaries, as Trainer wants them."""

    def __init__(self):
        self.images, self.labels = task.digits()

    def __len__(self):
        return task.SAMPLES

    def __getitem__(self, index):
        return {"x": self.images[index], "labels": self.labels[index]}


class Network(nn.Module):
    """Any module that returns logits."""

    def __init__(self, name="logits"):
        super().__init__()
        self.net, self.name = task.network(), name

    def forward(self, x):
        return {self.name: self.net(x)}


def make(folder, model=None, **options):
    model = model or Network()
    arguments = transformers.TrainingArguments(
        str(folder),
        **{
            "use_cpu": True,
            "per_device_train_batch_size": task.BATCH,
            "per_device_eval_batch_size": 256,
            "num_train_epochs": 2,
            "train_sampling_strategy": "sequential",
            "label_names": ["labels"],
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0,
            "report_to": "none",
            "disable_tqdm": True,
            "save_strategy": "no",
            "logging_strategy": "no",
            **options,
        },
    )
    return transformers.Trainer(
        model,
        arguments,
        compute_loss_func=trainer_loss(task.criterion()),
        train_dataset=Digits(),
        eval_dataset=Digits(),
        compute_metrics=calibration_metrics(),
        optimizers=(torch.optim.SGD(model.parameters(), lr=task.RATE, momentum=0.9), None),
    )


@pytest.mark.parametrize("accumulate", [1, 3])
def test_it_is_the_plain_loop(accumulate, tmp_path):
    reference = task.network()
    optimiser = torch.optim.SGD(reference.parameters(), lr=task.RATE, momentum=0.9)
    images, labels = task.digits()
    steps = torch.arange(task.SAMPLES).split(task.BATCH * accumulate)
    for step in [*steps, *steps]:
        optimiser.zero_grad()
        for rows in step.split(task.BATCH):
            loss = task.criterion()(reference(images[rows]), labels[rows])
            (loss * len(rows) / len(step)).backward()
        optimiser.step()
    trainer = make(tmp_path, gradient_accumulation_steps=accumulate)
    assert trainer.train().global_step == 2 * len(steps)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(trainer.model.net.state_dict()[name], value, rtol=0, atol=1e-9)


def test_metrics_are_plain_numbers(tmp_path):
    trainer = make(tmp_path, eval_strategy="epoch")
    trainer.train()
    found = trainer.evaluate()
    images, labels = task.digits()
    with torch.no_grad():
        logits = trainer.model.net(images)
        expected = evaluate(Predictions.from_logits(logits, labels))
        loss = float(task.criterion()(logits, labels))
    assert found["eval_loss"] == pytest.approx(loss)  # one batch
    defined = {name: value for name, value in expected.values().items() if value is not None}
    assert len(defined) > 12
    for name, value in defined.items():
        assert type(found[f"eval_{name}"]) is float
        assert found[f"eval_{name}"] == pytest.approx(value)
    assert {"eval_share@0.95", "eval_noise_floor"} < set(found)
    json.dumps(found, allow_nan=False)
    said = predictions_of(trainer.predict(Digits()), class_names=map(str, range(10)))
    assert said.class_names == tuple("0123456789")
    assert evaluate(said).nll == pytest.approx(expected.nll)


def test_an_undefined_metric_is_left_out():
    logits = torch.eye(3).numpy() * 9
    prediction = transformers.EvalPrediction(predictions=logits, label_ids=torch.arange(3).numpy())
    found = calibration_metrics(thresholds=[0.5])(prediction)
    assert "auroc" not in found  # no prediction is wrong
    assert found["share@0.5"] == 1.0


def test_bad_input_is_one_line(tmp_path):
    with pytest.raises(InvalidInput, match=r"^criterion must be a loss of calibrant\.losses, got CrossEntropyLoss"):
        trainer_loss(nn.CrossEntropyLoss())
    with pytest.raises(InvalidInput, match=r"^the model must return a dictionary with 'logits', got dict"):
        make(tmp_path, Network("scores")).train()
    with pytest.raises(InvalidInput, match=r"^the model must return a dictionary with 'logits', got Tensor"):
        trainer_loss(CrossEntropy())(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))
    unlabelled = transformers.trainer_utils.PredictionOutput(torch.zeros(2, 3).numpy(), None, {})
    with pytest.raises(InvalidInput, match=r"^output must have labels"):
        predictions_of(unlabelled)
