"""A small network on the handwritten digits of scikit-learn, in plain PyTorch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant import Predictions
from calibrant.integrations.any_loop import judge

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
train, val, test = torch.randperm(len(labels)).split([700, 500, 597])

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
criterion = nn.CrossEntropyLoss()
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
loader = DataLoader(TensorDataset(images[train], labels[train]), batch_size=50, shuffle=True)
for _ in range(20):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

with torch.no_grad():
    accuracy = float((model(images[test]).argmax(dim=1) == labels[test]).float().mean())
    validated = Predictions.from_logits(model(images[val]), labels[val])
    tested = Predictions.from_logits(model(images[test]), labels[test])
judgement = judge("judged", validated, tested, target_accuracy=0.97)
print(judgement)
print(f"test accuracy {accuracy:.1%}")
