"""Lightning's loop against the plain one: parameters, scores and kept sets, undisturbed and resumed."""

import logging
import subprocess

import integration_task as task
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from calibrant.errors import InvalidInput
from calibrant.integrations import CalibrationError
from calibrant.integrations.lightning import PruningCallback
from calibrant.pruning import Indexed

pl = pytest.importorskip("lightning.pytorch")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning.*", "ignore::FutureWarning:lightning.*")


class Module(pl.LightningModule):
    """What a user writes: the loss with weights, and three entries to return."""

    def __init__(self, pruner, leave_out=None, skip=()):
        super().__init__()
        self.net, self.criterion, self.ece = task.network(), task.criterion(), CalibrationError(10, kind="logits")
        self.weights_of, self.leave_out, self.skip = pruner.weights, leave_out, skip
        self.validated = []

    def training_step(self, batch, number):
        if (self.current_epoch, number) in self.skip:
            return None
        x, y, indices = batch
        logits = self.net(x)
        loss = self.criterion(logits, y, weights=self.weights_of(indices))
        outputs = {"loss": loss, "logits": logits, "indices": indices}
        return {name: value for name, value in outputs.items() if name != self.leave_out}

    def validation_step(self, batch, _):
        self.ece.update(self.net(batch[0]), batch[1])
        self.log("val_ece", self.ece)

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.validated.append((self.current_epoch, self.trainer.global_step))

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=task.RATE, momentum=0.9)


def loader_of(pruner, **options):
    data = Indexed(TensorDataset(*task.digits()))
    return DataLoader(data, batch_size=task.BATCH, sampler=pruner.sampler(batch_size=task.BATCH), **options)


def fit(plan, *, loader=loader_of, checkpoint=None, save=None, module=None, callback=PruningCallback, **options):
    """One training; returns module, pruner and trainer."""
    pruner = task.pruner_for(plan)
    model = Module(pruner, **(module or {}))
    callbacks = [callback(pruner), *([save] if save else [])]
    trainer = pl.Trainer(
        **{
            "max_epochs": task.EPOCHS,
            "accelerator": "cpu",
            "reload_dataloaders_every_n_epochs": 1,
            "callbacks": callbacks,
            "enable_checkpointing": save is not None,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **options,
        }
    )
    validation = DataLoader(TensorDataset(*task.digits()), batch_size=128)
    weights_only = True if checkpoint else None  # nothing in the file has to be unpickled
    trainer.fit(model, loader(pruner), validation, ckpt_path=checkpoint, weights_only=weights_only)
    return model, pruner, trainer


@pytest.mark.parametrize("plan", task.PLANS)
def test_it_is_the_plain_loop(plan):
    reference, reference_pruner = task.plain_loop(plan)
    sizes = reference_pruner.kept_by_epoch
    assert min(sizes) < task.SAMPLES  # something was pruned on the way
    model, pruner, trainer = fit(plan)
    task.assert_same(model.net, pruner, reference, reference_pruner)
    steps = [-(-size // task.BATCH) for size in sizes]
    assert trainer.global_step == sum(steps)
    # Shorter epochs are validated at their end too.
    assert model.validated == [(epoch, sum(steps[: epoch + 1])) for epoch in range(task.EPOCHS)]


def test_the_weights_enter_the_loss():
    with_weights, _, _ = fit("unbiased", max_epochs=3)
    reference, _ = task.plain_loop("unbiased", epochs=3)
    torch.testing.assert_close(with_weights.net[0].weight, reference[0].weight, rtol=0, atol=1e-9)

    class Unweighted(Module):
        def __init__(self, pruner):
            super().__init__(pruner)
            self.weights_of = lambda indices: torch.ones(len(indices))

    pruner = task.pruner_for("unbiased")
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        reload_dataloaders_every_n_epochs=1,
        callbacks=[PruningCallback(pruner)],
        enable_checkpointing=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    without = Unweighted(pruner)
    trainer.fit(without, loader_of(pruner))
    assert (without.net[0].weight - reference[0].weight).abs().max() > 1e-3


@pytest.mark.parametrize("plan", ["unbiased", "infobatch"])
def test_gradient_accumulation(plan):
    # Lightning divides by the number of batches that share a step also where the last step has fewer.
    reference, reference_pruner = task.plain_loop(plan, accumulate=3, divide=3)
    model, pruner, _ = fit(plan, accumulate_grad_batches=3)
    task.assert_same(model.net, pruner, reference, reference_pruner)


def test_part_of_an_epoch_and_validation_in_its_middle():
    reference, reference_pruner = task.plain_loop("lowest", limit=6)
    model, pruner, trainer = fit("lowest", limit_train_batches=6, val_check_interval=3)
    task.assert_same(model.net, pruner, reference, reference_pruner)
    assert trainer.global_step == 6 * task.EPOCHS
    assert len(model.validated) == 2 * task.EPOCHS


def test_what_is_logged():
    _, _, trainer = fit("lowest", max_epochs=3)
    _, reference = task.plain_loop("lowest", epochs=3)
    kept = reference.kept_by_epoch[-1]
    assert trainer.callback_metrics["pruning/kept"] == kept
    assert trainer.callback_metrics["pruning/kept_share"] == pytest.approx(kept / task.SAMPLES)
    assert 0 < float(trainer.callback_metrics["val_ece"]) < 1


def test_a_batch_that_training_step_leaves_out_is_not_observed():
    _, pruner, _ = fit("lowest", max_epochs=1, module={"skip": {(0, 2)}})
    order = task.pruner_for("lowest").order()
    out = order[2 * task.BATCH : 3 * task.BATCH]
    count = pruner.table.rows[:, pruner.table.columns.index("count")]
    assert count[out].sum() == 0
    assert count.sum() == task.SAMPLES - task.BATCH


@pytest.mark.parametrize("plan", ["unbiased", "infobatch"])
def test_a_resumed_run_ends_like_an_undisturbed_one(plan, tmp_path):
    reference, reference_pruner = task.plain_loop(plan)
    fit(plan, save=pl.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1))
    files = sorted(tmp_path.glob("*.ckpt"))
    assert len(files) == task.EPOCHS
    for file in files:
        model, pruner, _ = fit(plan, checkpoint=file, loader=lambda pruner: loader_of(pruner, num_workers=1))
        task.assert_same(model.net, pruner, reference, reference_pruner)


@pytest.mark.parametrize("when", [{"every_n_train_steps": 5}, {"save_on_train_epoch_end": False}])
def test_a_checkpoint_from_before_the_end_of_an_epoch_is_refused(when, tmp_path):
    fit("lowest", max_epochs=1, save=pl.callbacks.ModelCheckpoint(tmp_path, **when))
    (file,) = tmp_path.glob("*.ckpt")
    with pytest.raises(InvalidInput, match=r"^ckpt_path must be a checkpoint from the end of an epoch, got one"):
        fit("lowest", checkpoint=file)


def test_lightning_would_end_an_epoch_twice(tmp_path):
    fit("lowest", max_epochs=1, save=pl.callbacks.ModelCheckpoint(tmp_path, save_on_train_epoch_end=True))
    (file,) = tmp_path.glob("*.ckpt")
    with pytest.raises(InvalidInput, match=r"^Trainer's max_steps must be left out after the end of an epoch, got 20"):
        fit("lowest", checkpoint=file, max_epochs=-1, max_steps=20)


class OtherPruner(PruningCallback):
    """A callback with another pruner than the loader's."""

    def __init__(self, pruner):
        super().__init__(task.pruner_for("lowest"))


class UsedPruner(PruningCallback):
    """A callback whose pruner has been trained with."""

    def __init__(self, pruner):
        pruner.observe(torch.arange(task.SAMPLES), torch.zeros(task.SAMPLES, 10))
        pruner.step()
        super().__init__(pruner)


def shuffled(pruner):
    return DataLoader(Indexed(TensorDataset(*task.digits())), batch_size=task.BATCH, shuffle=True)


def longer(pruner):
    data = TensorDataset(*(torch.cat([part, part[:1]]) for part in task.digits()))
    return DataLoader(Indexed(data), batch_size=task.BATCH, sampler=pruner.sampler())


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"reload_dataloaders_every_n_epochs": 0}, "Trainer's reload_dataloaders_every_n_epochs must be 1 with a prun"),
        ({"loader": shuffled}, r"the training loader must have the sampler pruner.sampler\(\), got RandomSampler"),
        ({"loader": longer}, "dataset must have the 203 samples of the pruner's targets, got 204"),
        ({"callback": OtherPruner}, "the training loader must have the sampler .* got KeptSampler"),
        ({"callback": UsedPruner}, "pruner must stand at the trainer's epoch 0, got one at epoch 1. A new training"),
        ({"module": {"leave_out": "logits"}}, r"training_step must return .* 'logits', got \['indices', 'loss'\]"),
        (
            {"module": {"leave_out": "indices"}},
            "training_step must return .* tensors 'indices' and 'logits'",
        ),
    ],
)
def test_bad_input_is_one_line(options, line):
    with pytest.raises(InvalidInput, match=f"^{line}") as caught:
        fit("lowest", max_epochs=1, **options)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_one_line(python):
    program = """
import sys
sys.modules["lightning"] = None
import calibrant, calibrant.integrations
try:
    import calibrant.integrations.lightning
except calibrant.errors.InvalidInput as error:
    print(error)
"""
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("pip install 'calibrant[train]'")
