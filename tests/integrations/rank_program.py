"""One rank of an adapter's training; torchrun starts it for test_ranks_integration.py. It prints what it has shown."""

import importlib.util
import logging
import os
import sys
import warnings
from pathlib import Path

import integration_task as task
import numpy as np
from torch import distributed as dist

from calibrant import Predictions
from calibrant.errors import InvalidInput

RANKS = 2


def tests_of(name):
    """The test module of an adapter, for its module, loaders and options."""
    path = Path(__file__).with_name(f"test_{name}.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_lightning(plans, folder):
    lightning = tests_of("lightning")
    options = {"devices": RANKS, "strategy": "ddp", "use_distributed_sampler": False}
    for plan, reference in plans.items():
        where = folder / plan
        save = lightning.pl.callbacks.ModelCheckpoint(where, "{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
        model, pruner, _ = lightning.fit(plan, save=save, **options)
        task.assert_same(model.net, pruner, *reference)
        model, pruner, _ = lightning.fit(plan, checkpoint=where / "epoch=2.ckpt", **options)
        task.assert_same(model.net, pruner, *reference)
        say(f"{plan} is the plain loop, resumed too")
    try:
        lightning.fit("lowest", loader=lightning.loader_of, devices=RANKS, strategy="ddp")
    except InvalidInput as error:
        say(str(error))
    calibrate_with_lightning(folder)


def calibrate_with_lightning(folder):
    """A number of cases that the ranks cannot share evenly comes back whole and in its order."""
    calibration = tests_of("lightning_calibration")
    callback = calibration.CalibrationCallback(folder, target_accuracy=0.9)
    trainer = calibration.trainer_with(callback, devices=RANKS, strategy="ddp", max_epochs=1)
    model = calibration.Classifier()
    trainer.fit(model, calibration.loader(0, 300), calibration.loader(900, 1351))
    trainer.test(model, calibration.loader(1350, 1797), verbose=False)
    for split, rows in (("val", (900, 1351)), ("test", (1350, 1797))):
        if dist.get_rank() == 0:
            kept = Predictions.load(folder / "predictions" / f"{split}.npz")
            expected = calibration.by_hand(model, *rows)
            assert (kept.targets == expected.targets).all()
            np.testing.assert_allclose(kept.logits, expected.logits, rtol=1e-4, atol=1e-5)
            say(f"{split} is whole: {len(kept)} cases")


def say(line):
    if dist.get_rank() == 0:
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    references = {plan: task.plain_loop(plan, batch=RANKS * task.BATCH) for plan in ("unbiased", "infobatch")}
    run_lightning(references, Path(sys.argv[1]))
    dist.barrier()
    sys.stdout.flush()
    # All is compared by now. Gloo's threads now and then abort the process where they are taken down, in
    # destroy_process_group() as well as at the interpreter's exit.
    os._exit(0)
