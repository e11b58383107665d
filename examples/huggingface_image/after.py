"""A small vision transformer on the handwritten digits of scikit-learn, with Hugging Face's Trainer."""

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from calibrant.integrations.any_loop import judge
from calibrant.integrations.transformers import predictions_of

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(digits)
train, val, test = torch.randperm(len(labels)).split([700, 500, 597])


class Digits(Dataset):
    """Some of the pictures, as Trainer wants them."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return {"pixel_values": images[row], "labels": labels[row]}


# Built from a configuration; ViTForImageClassification.from_pretrained(...) is used alike.
sizes = {"image_size": 8, "patch_size": 4, "num_channels": 1, "hidden_size": 48, "intermediate_size": 96}
# The usual initial weights, of 0.02, are made for wide networks: with them this one learns nothing for ten epochs.
layers = {"num_hidden_layers": 1, "num_attention_heads": 4, "initializer_range": 0.1}
model = ViTForImageClassification(ViTConfig(num_labels=10, **sizes, **layers))
arguments = TrainingArguments(
    "trained",
    num_train_epochs=10,
    per_device_train_batch_size=50,
    per_device_eval_batch_size=250,
    learning_rate=5e-3,
    lr_scheduler_type="cosine",
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model, arguments, train_dataset=Digits(train))
trainer.train()
tested = trainer.predict(Digits(test))
accuracy = float((tested.predictions.argmax(axis=1) == tested.label_ids).mean())
print(f"test accuracy {accuracy:.1%}")
trainer.save_model("trained")
validation, test_predictions = predictions_of(trainer.predict(Digits(val))), predictions_of(tested)
judgement = judge("judged", validation, test_predictions, target_accuracy=0.97)
Path("trained", "README.md").write_text(f"```\n{judgement}\n```\n")
print(judgement)
