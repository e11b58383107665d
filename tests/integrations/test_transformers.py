"""Hugging Face's Trainer against the plain loop: parameters, scores and kept sets, undisturbed and resumed."""

import json

import integration_task as task
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from calibrant import Predictions, evaluate
from calibrant.errors import InvalidInput
from calibrant.integrations.transformers import (
    INDEX_KEY,
    STATE_FILE,
    CalibratedTrainer,
    calibration_metrics,
)
from calibrant.losses import CrossEntropy
from calibrant.pruning import ConfidencePruner, Every, LowestConfidence

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()


class Digits(Dataset):
    """Dictionaries, as Trainer wants them, with a column that no model takes."""

    def __init__(self, samples=task.SAMPLES):
        self.images, self.labels = task.digits()
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return {"x": self.images[index], "labels": self.labels[index], "name": f"digit {index}"}


class Network(nn.Module):
    """Any module that returns logits; the index must not reach its forward."""

    def __init__(self, output=lambda logits: {"logits": logits}):
        super().__init__()
        self.net, self.output = task.network(), output

    def forward(self, x):
        return self.output(self.net(x))


def arguments(folder, **options):
    return transformers.TrainingArguments(
        str(folder),
        **{
            "use_cpu": True,
            "per_device_train_batch_size": task.BATCH,
            "num_train_epochs": task.EPOCHS,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0,
            "report_to": "none",
            "disable_tqdm": True,
            "save_strategy": "no",
            "logging_strategy": "no",
            "per_device_eval_batch_size": 256,
            **options,
        },
    )


def make(plan, folder, *, model=None, pruner=None, data=None, criterion=None, scheduler=None, **options):
    model = model or Network()
    optimiser = torch.optim.SGD(model.parameters(), lr=task.RATE, momentum=0.9)
    return CalibratedTrainer(
        model,
        arguments(folder, **options),
        criterion=criterion or task.criterion(),
        pruner=pruner or task.pruner_for(plan),
        train_dataset=data or Digits(),
        eval_dataset=Digits(),
        compute_metrics=calibration_metrics(),
        optimizers=(optimiser, scheduler),
    )


def train(plan, folder, *, checkpoint=None, **options):
    trainer = make(plan, folder, **options)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return trainer


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("plan", task.PLANS)
def test_it_is_the_plain_loop(plan, accumulate, tmp_path):
    reference, reference_pruner = task.plain_loop(plan, accumulate=accumulate)
    sizes = reference_pruner.kept_by_epoch
    assert min(sizes) < task.SAMPLES  # something was pruned on the way
    trainer = train(plan, tmp_path, gradient_accumulation_steps=accumulate)
    task.assert_same(trainer.model.net, trainer.pruner, reference, reference_pruner)
    assert trainer.state.global_step == sum(-(-size // task.BATCH // accumulate) for size in sizes)
    assert trainer.state.epoch == task.EPOCHS


def test_the_weights_enter_the_loss(tmp_path):
    reference, _ = task.plain_loop("unbiased", epochs=3)
    options = {"num_train_epochs": 3}
    same = train("unbiased", tmp_path, **options).model.net
    torch.testing.assert_close(same[0].weight, reference[0].weight, rtol=0, atol=1e-9)
    pruner = task.pruner_for("unbiased")
    pruner.weights = lambda indices: torch.ones(len(indices))
    without = train("unbiased", tmp_path, pruner=pruner, **options).model.net
    assert (without[0].weight - reference[0].weight).abs().max() > 1e-3


# The course of "lowest" takes 13, 13, 11, 9, 8 steps and so on; half of the fifth epoch's are 4.
@pytest.mark.parametrize(("plan", "epochs", "total"), [("unbiased", task.EPOCHS, 66), ("lowest", 4.5, 50)])
def test_the_learning_rate_ends_at_zero_with_the_last_step(plan, epochs, total, tmp_path):
    trainer = train(plan, tmp_path, lr_scheduler_type="linear", num_train_epochs=epochs)
    assert trainer.state.max_steps == trainer.state.global_step == total
    assert trainer.lr_scheduler.get_last_lr() == [0.0]
    if epochs == task.EPOCHS:
        assert total == task.pruner_for(plan).total_steps(epochs, task.BATCH)


def test_a_number_of_steps_instead_of_epochs(tmp_path):
    trainer = train("lowest", tmp_path, max_steps=60)
    reference, reference_pruner = task.plain_loop("lowest")  # six epochs, of which the last are short
    task.assert_same(trainer.model.net, trainer.pruner, reference, reference_pruner)


def test_an_unknown_number_of_steps(tmp_path):
    with pytest.raises(InvalidInput, match="InfoBatch"):
        train("infobatch", tmp_path, lr_scheduler_type="linear")
    assert train("infobatch", tmp_path, lr_scheduler_type="linear", max_steps=30).state.global_step == 30


@pytest.mark.parametrize("save", [{"save_strategy": "steps", "save_steps": 6}, {"save_strategy": "epoch"}])
@pytest.mark.parametrize(("plan", "accumulate"), [("infobatch", 1), ("unbiased", 3)])
def test_a_resumed_run_ends_like_an_undisturbed_one(plan, accumulate, save, tmp_path):
    reference, reference_pruner = task.plain_loop(plan, accumulate=accumulate)
    train(plan, tmp_path, gradient_accumulation_steps=accumulate, **save)
    folders = sorted(tmp_path.glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))[::2]
    assert len(folders) >= 2
    for folder in folders:
        trainer = train(plan, tmp_path / "again", checkpoint=folder, gradient_accumulation_steps=accumulate)
        task.assert_same(trainer.model.net, trainer.pruner, reference, reference_pruner)


def test_a_run_that_stopped_in_mid_epoch_goes_on(tmp_path):
    reference, reference_pruner = task.plain_loop("lowest")
    half = train("lowest", tmp_path, max_steps=30, save_strategy="epoch")
    assert half.pruner.epoch == 2  # the third epoch has not ended
    trainer = train("lowest", tmp_path, checkpoint=tmp_path / "checkpoint-30")
    task.assert_same(trainer.model.net, trainer.pruner, reference, reference_pruner)


def test_generators_go_on_from_the_last_batch_of_an_epoch(tmp_path):
    def model():
        network = Network()
        network.net.insert(1, nn.Dropout(0.3))
        return network

    whole = train("unbiased", tmp_path, model=model(), save_strategy="steps", save_steps=1)
    for step in (12, 13, 14, 53):
        trainer = train("unbiased", tmp_path / "b", model=model(), checkpoint=tmp_path / f"checkpoint-{step}")
        assert torch.equal(trainer.model.net[0].weight, whole.model.net[0].weight)


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_a_second_training_starts_with_a_fresh_pruner(schedule, tmp_path):
    trainer = train("lowest", tmp_path, lr_scheduler_type=schedule)
    trainer.train()
    assert trainer.pruner.epoch == task.EPOCHS
    _, reference = task.plain_loop("lowest")
    assert trainer.pruner.kept_by_epoch == reference.kept_by_epoch


def test_checkpoints_hold_no_pickle_of_ours(tmp_path):
    train("lowest", tmp_path, save_strategy="epoch", num_train_epochs=3)
    state = tmp_path / "checkpoint-13" / STATE_FILE
    header = state.read_bytes()[8 : 8 + int.from_bytes(state.read_bytes()[:8], "little")]
    assert json.loads(json.loads(header)["__metadata__"]["values"])["epoch"] == 1
    content = bytearray(state.read_bytes())
    state.write_bytes(content[: len(content) // 2])
    with pytest.raises(InvalidInput, match="must be a pruner's state"):
        train("lowest", tmp_path, checkpoint=tmp_path / "checkpoint-13")
    state.unlink()
    with pytest.raises(InvalidInput, match=r"does not exist\. Resume from a checkpoint that was written with a pruner"):
        train("lowest", tmp_path, checkpoint=tmp_path / "checkpoint-13")


@pytest.mark.parametrize("output", [lambda logits: logits, lambda logits: (logits, logits.exp())])
def test_models_that_return_something_else(output, tmp_path):
    reference, reference_pruner = task.plain_loop("lowest", epochs=3)
    trainer = train("lowest", tmp_path, model=Network(output), num_train_epochs=3)
    task.assert_same(trainer.model.net, trainer.pruner, reference, reference_pruner)
    assert trainer.evaluate()["eval_test_error"] == error_of(trainer.model.net)


def error_of(network):
    images, labels = task.digits()
    with torch.no_grad():
        return evaluate(Predictions.from_logits(network(images), labels)).test_error


def test_metrics_are_plain_numbers(tmp_path):
    trainer = train("lowest", tmp_path, num_train_epochs=3, eval_strategy="epoch")
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
    assert {"eval_ece@0.95", "eval_share@0.95", "eval_noise_floor"} < set(found)
    json.dumps(found, allow_nan=False)


def test_an_undefined_metric_is_left_out():
    logits = torch.eye(3).numpy() * 9
    prediction = transformers.EvalPrediction(predictions=logits, label_ids=torch.arange(3).numpy())
    found = calibration_metrics(thresholds=[0.5])(prediction)
    assert "auroc" not in found  # no prediction is wrong
    assert found["share@0.5"] == 1.0


def vision_model():
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(1)
    return transformers.ViTForImageClassification(config).double()


class Pictures(Digits):
    def __getitem__(self, index):
        return {"pixel_values": self.images[index].reshape(1, 8, 8), "label": int(self.labels[index])}


def test_a_vision_transformer_and_no_pruner(tmp_path):
    model = vision_model()
    pruner = ConfidencePruner(task.digits()[1], policy=LowestConfidence(0.2), schedule=Every(100, start=1))
    trainer = train("lowest", tmp_path, model=model, pruner=pruner, data=Pictures(), num_train_epochs=2)
    assert pruner.kept_by_epoch == [203, 165]
    reference, again = (
        vision_model(),
        ConfidencePruner(task.digits()[1], policy=LowestConfidence(0.2), schedule=Every(100, start=1)),
    )
    optimiser = torch.optim.SGD(reference.parameters(), lr=task.RATE, momentum=0.9)
    images, labels = task.digits()
    for _ in range(2):
        for i in again.order().split(task.BATCH):
            logits = reference(pixel_values=images[i].reshape(-1, 1, 8, 8)).logits
            optimiser.zero_grad()
            task.criterion()(logits, labels[i]).backward()
            optimiser.step()
            again.observe(i, logits)
        again.step()
    task.assert_same(trainer.model, pruner, reference, again)

    plain = CalibratedTrainer(
        vision_model(), arguments(tmp_path, num_train_epochs=1), criterion=CrossEntropy(), train_dataset=Pictures()
    )
    assert plain.train().global_step == 13


def test_weights_that_are_saved_under_other_names_come_back(tmp_path):
    # transformers 5.22 saves a ViT's layers under the names of the hub, and its Trainer finds none of them again.
    best = {"eval_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": "nll"}
    options = {"save_strategy": "epoch", "num_train_epochs": 2, "max_grad_norm": 0}
    whole = make("lowest", tmp_path, model=vision_model(), data=Pictures(), **options, **best, greater_is_better=False)
    whole.eval_dataset = Pictures()
    whole.train()
    found = [line["eval_nll"] for line in whole.state.log_history if "eval_nll" in line]
    assert found[0] < found[1]  # so the first epoch comes back
    assert whole.evaluate()["eval_nll"] == pytest.approx(found[0], rel=1e-12)

    resumed = vision_model()
    with torch.no_grad():
        for parameter in resumed.parameters():
            parameter.add_(1)
    first = tmp_path / "checkpoint-13"
    again = train("lowest", tmp_path / "b", model=resumed, data=Pictures(), checkpoint=first, **options)
    again.eval_dataset = Pictures()
    assert again.evaluate()["eval_nll"] == pytest.approx(found[1], rel=1e-12)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


class Pairs(Digits):
    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Unlabelled(Digits):
    def __getitem__(self, index):
        return {"x": self.images[index]}


class Named(Digits):
    def __getitem__(self, index):
        return {**super().__getitem__(index), INDEX_KEY: 0}


def used_pruner():
    pruner = ConfidencePruner(task.digits()[1])
    pruner.step()
    return pruner


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"data": Digits(200)}, "train_dataset must"),
        ({"data": Stream()}, "dataset must have __getitem__ and __len__, got Stream"),
        ({"data": Pairs()}, "train_dataset must yield dictionaries, got Tensor"),
        ({"data": Unlabelled()}, r"the batch must hold 'labels', got \['x'\]"),
        ({"data": Named()}, "key must be new to the dataset's dictionaries"),
        ({"pruner": used_pruner()}, "pruner must be new, got one at epoch 1"),
        ({"criterion": nn.CrossEntropyLoss()}, "criterion must be a loss of calibrant.losses, got CrossEntropyLoss"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor must be 0, got 0.1. Use CrossEntropy"),
        ({"train_sampling_strategy": "sequential"}, "train_sampling_strategy must be left out with a pruner"),
        ({"model": Network(lambda logits: {"hidden": logits})}, r"the model must return 'logits', .* got"),
    ],
)
def test_bad_input_is_one_line(options, line, tmp_path):
    with pytest.raises(InvalidInput, match=f"^{line}") as caught:
        train("lowest", tmp_path, num_train_epochs=3, **options)
    assert "\n" not in str(caught.value)


def test_a_loss_function_beside_the_criterion_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"^compute_loss_func must be left out"):
        CalibratedTrainer(Network(), arguments(tmp_path), criterion=CrossEntropy(), compute_loss_func=len)


def test_a_loader_without_indices_is_refused(tmp_path):
    class Own(CalibratedTrainer):
        def get_train_dataloader(self):
            return self.get_eval_dataloader()

    trainer = Own(
        Network(),
        arguments(tmp_path),
        criterion=CrossEntropy(),
        pruner=task.pruner_for("lowest"),
        train_dataset=Digits(),
        eval_dataset=Digits(),
    )
    with pytest.raises(InvalidInput, match=f"^the training batch must hold '{INDEX_KEY}'"):
        trainer.train()
