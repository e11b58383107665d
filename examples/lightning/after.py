"""A small network on the handwritten digits of scikit-learn, with Lightning's Trainer."""

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.integrations.lightning import CalibrationCallback

pl.seed_everything(0, verbose=False)
pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
train, val, test = (TensorDataset(images[i], labels[i]) for i in torch.randperm(len(labels)).split([700, 500, 597]))


class Classifier(pl.LightningModule):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, _):
        x, y = batch
        logits = self.net(x)
        self.log("accuracy", (logits.argmax(dim=1) == y).float().mean())
        return {"logits": logits, "targets": y}

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


model = Classifier()
callback = CalibrationCallback("judged", target_accuracy=0.97)
trainer = pl.Trainer(
    max_epochs=10, logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=[callback]
)
trainer.fit(model, DataLoader(train, batch_size=50, shuffle=True), DataLoader(val, batch_size=500))
(found,) = trainer.test(model, DataLoader(test, batch_size=500), verbose=False)
accuracy = found["accuracy"]
judgement = callback.judgement
print(judgement)
print(f"test accuracy {accuracy:.1%}")
