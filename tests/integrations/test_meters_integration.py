"""Meters where they live: across processes, and in a Lightning training loop."""

import json
import subprocess
import sys
from pathlib import Path

import lightning
import numpy as np
import pytest
import torch
from torch import distributed as dist
from torchmetrics import MetricCollection

from calibrant import Predictions
from calibrant import metrics as m
from calibrant.integrations import meters as i

ROWS, CLASSES = 501, 5


def everything():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, CLASSES, generator=generator) * 3
    return logits, torch.randint(0, CLASSES, (ROWS,), generator=generator)


def collection():
    return MetricCollection(
        {
            "ece": i.CalibrationError(15, kind="logits"),
            "classwise": i.ClasswiseCalibrationError(CLASSES, 15, kind="logits"),
            "share": i.ConfidentSetMeter(0.9, "share", kind="logits"),
            "nll": i.NegativeLogLikelihood(kind="logits"),
            "brier": i.BrierScore(kind="logits"),
        }
    )


def expected():
    p = Predictions.from_logits(*everything())
    return {
        "ece": m.expected_calibration_error(p, 15),
        "classwise": m.classwise_calibration_error(p, 15),
        "share": m.confident_set(p, 0.9).share,
        "nll": m.negative_log_likelihood(p),
        "brier": m.brier_score(p),
    }


def work(rank, folder):
    """What one of two processes does; this file is its program."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    logits, targets = everything()
    # Batches of random sizes; the ranks get different numbers of them.
    rng = np.random.default_rng(3)
    order = rng.permutation(ROWS)
    cuts = np.sort(rng.choice(np.arange(1, ROWS), 12, replace=False))
    meters = collection()
    for index, part in enumerate(np.split(order, cuts)):
        if (index % 3 == 0) == (rank == 0):
            meters.update(logits[part], targets[part])
    values = {name: value.item() for name, value in meters.compute().items()}
    Path(folder, f"{rank}.json").write_text(json.dumps(values))
    dist.destroy_process_group()


def test_two_processes_give_the_one_shot_value(tmp_path, python):
    commands = [[python, __file__, str(rank), str(tmp_path)] for rank in (0, 1)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    for rank in (0, 1):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for name, value in expected().items():
            assert found[name] == pytest.approx(value, abs=1e-12), (rank, name)


class Module(lightning.LightningModule):
    """Validates a fixed linear map and logs meters the usual way."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.ece = i.CalibrationError(15, kind="logits")
        self.meters = collection()

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(batch[0] * self.scale, batch[1])

    def validation_step(self, batch, _):
        self.ece(*batch)
        self.log("ece_alone", self.ece, on_step=False, on_epoch=True)
        self.meters.update(*batch)
        self.log_dict(self.meters, on_step=False, on_epoch=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_lightning_logs_the_value_of_the_epoch(tmp_path):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*everything()), batch_size=64)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Module(), loader, loader)
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    assert logged["ece_alone"] == pytest.approx(expected()["ece"], abs=1e-6)
    for name, value in expected().items():
        assert logged[name] == pytest.approx(value, rel=1e-6)  # Lightning keeps float32 copies


if __name__ == "__main__":
    work(int(sys.argv[1]), sys.argv[2])
