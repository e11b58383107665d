import torch

from calibrant.training.data import augment, draw_augmentation, load_dataset, normalise
from calibrant.training.models import build_model


def test_learns_the_digits_in_a_dozen_epochs():
    dataset = load_dataset("digits")
    torch.manual_seed(0)
    model = build_model("tiny", n_classes=dataset.n_classes, image_shape=dataset.image_shape)
    assert 30_000 < sum(parameter.numel() for parameter in model.parameters()) < 80_000
    epochs, batch, padding = 12, 64, dataset.augmentation.crop_padding
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    steps = epochs * -(-len(dataset.train) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(dataset.train)).split(batch):
            offsets, flips = draw_augmentation(len(rows), padding, dataset.augmentation.flip)
            images = augment(dataset.train.images[rows], offsets, flips, padding)
            logits = model(normalise(images, dataset.mean, dataset.std))
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(logits, dataset.train.labels[rows]).backward()
            optimiser.step()
            schedule.step()
    with torch.no_grad():
        predicted = model.eval()(normalise(dataset.test.images, dataset.mean, dataset.std)).argmax(1)
    assert (predicted == dataset.test.labels).double().mean() > 0.97
