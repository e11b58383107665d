"""Does training on the samples that a small proxy finds hard beat random samples at equal compute?

    python benchmarks/proxy_selection.py [--epochs 16 32] [--seeds 0 1 2] [--data cifar10] [--model resnet32]

The selection that airbench96 published: a small network sees every batch of 1,024 images first, and the main network
trains on the half with the highest loss. The proxy trains on that half too, in every fourth step. All plans make the
same kind of step (512 images, Nesterov momentum, alternating flips, a rate that rises and falls linearly, label
smoothing) and cost the same, the proxy included:

- proxy: the hardest half of each batch, for all epochs;
- random half: a random half of each batch, for as many more epochs as the proxy costs;
- all: whole batches of 512, for half of these epochs.

Printed: for how many epochs over half of the samples each plan trains, test error, and NLL after a temperature of the
validation set (mean and standard deviation over seeds). Nothing is chosen here, so the test set is read once.
"""

import argparse
import statistics

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant import Predictions, evaluate
from calibrant.calibration import TemperatureScaling
from calibrant.training.data import Dataset, load_dataset
from calibrant.training.models import build_model
from calibrant.training.models.resnet import ResNet
from calibrant.training.network import forward_flops

POOL, HALF = 1024, 512
LEARN_EVERY = 4
GRADIENT = 2  # passes forward that a pass backward costs
RATE, DECAY, SMOOTHING, WARM_UP = 0.2, 5e-4, 0.2, 0.1
HELD_OUT = 5000


def augmented(images: Tensor, rows: Tensor, epoch: int, draw: torch.Generator) -> Tensor:
    """A random crop of these images, each mirrored in every second epoch."""
    padded = functional.pad(images[rows], (4,) * 4)
    count, side = len(rows), images.shape[-1]
    x, y = (torch.randint(0, 9, (count, 1), generator=draw, device=rows.device) for _ in "xy")
    steps = torch.arange(side, device=rows.device)
    columns = torch.where(((rows + epoch) % 2 == 0)[:, None], steps, side - 1 - steps) + x
    picked = padded[
        torch.arange(count, device=rows.device)[:, None, None], :, (y + steps)[:, :, None], columns[:, None]
    ]
    return picked.permute(0, 3, 1, 2)


class Learner:
    """A network with its optimiser and schedule."""

    def __init__(self, network: nn.Module, steps: int, device: torch.device) -> None:
        self.network = network.to(device, memory_format=torch.channels_last)
        self.forward = torch.compile(self.network, dynamic=False)
        self.optimiser = torch.optim.SGD(network.parameters(), lr=RATE, momentum=0.9, nesterov=True, weight_decay=DECAY)
        rise = max(1, round(WARM_UP * steps))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimiser, lambda step: min((step + 1) / rise, (steps - step) / max(1, steps - rise))
        )

    def losses(self, images: Tensor, targets: Tensor) -> Tensor:
        """The loss of each image."""
        with torch.autocast(images.device.type, torch.bfloat16):
            logits = self.forward(images)
        return functional.cross_entropy(logits.float(), targets, label_smoothing=SMOOTHING, reduction="none")

    def learn(self, loss: Tensor) -> None:
        """Take a step."""
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()


def train(
    plan: str, epochs: float, seed: int, images: Tensor, targets: Tensor, fresh: dict[str, nn.Module]
) -> nn.Module:
    """Train the main network by a plan: `epochs` times half of the samples in steps of 512."""
    device = images.device
    draw = torch.Generator(device).manual_seed(seed)
    batch = {"all": HALF}.get(plan, POOL)
    per_epoch = len(targets) // batch
    steps = round(epochs * (len(targets) // POOL))
    torch.compiler.reset()  # each network is compiled anew, and torch compiles one piece of code only a few times
    main, proxy = (Learner(fresh[name], steps, device) for name in ("main", "proxy"))
    for step in range(steps):
        epoch, place = divmod(step, per_epoch)
        if place == 0:
            order = torch.randperm(len(targets), generator=draw, device=device)
        rows = order[place * batch : (place + 1) * batch]
        pictures, labels = augmented(images, rows, epoch, draw), targets[rows]
        pictures = pictures.contiguous(memory_format=torch.channels_last)
        if plan == "proxy":
            learns = step % LEARN_EVERY == 0
            with torch.set_grad_enabled(learns):
                hardness = proxy.losses(pictures, labels)
            kept = hardness.detach().topk(HALF).indices
            if learns:
                proxy.learn(hardness[kept].mean())
            proxy.schedule.step()
        else:
            kept = torch.randperm(batch, generator=draw, device=device)[:HALF]
        main.learn(main.losses(pictures[kept], labels[kept]).mean())
        main.schedule.step()
    return main.network


def networks(name: str, data: Dataset, seed: int) -> dict[str, nn.Module]:
    """The main network, and a proxy of three blocks and half its width."""
    torch.manual_seed(seed)
    main = build_model(name, n_classes=data.n_classes, image_shape=data.image_shape)
    proxy = ResNet(
        (1, 1, 1), bottleneck=False, widths=(8, 16, 32), n_classes=data.n_classes, channels=data.image_shape[0]
    )
    return {"main": main, "proxy": proxy}


@torch.no_grad()
def logits_of(network: nn.Module, images: Tensor) -> Tensor:
    network.eval()
    return torch.cat([network(part.contiguous(memory_format=torch.channels_last)) for part in images.split(HALF)]).cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, nargs="+", default=[16, 32], help="epochs over all samples of `proxy`")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--model", default="resnet32")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load_dataset(options.data)
    if len(data.train) < HELD_OUT + POOL:
        parser.error(f"--data needs {HELD_OUT + POOL:,} training images, {options.data} has {len(data.train):,}")
    mean, spread = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))

    def ready(images: Tensor) -> Tensor:
        return ((images.float() / 255 - mean) / spread).to(device)

    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    held_out, learnt = order[:HELD_OUT], order[HELD_OUT:]
    images, labels = ready(data.train.images), data.train.labels
    train_images, train_labels = images[learnt.to(device)], labels[learnt].to(device)
    test_images = ready(data.test.images)

    cost = {
        name: forward_flops(part, data.image_shape, data.image_shape[1:])
        for name, part in networks(options.model, data, 0).items()
    }
    half = HALF * cost["main"] * (1 + GRADIENT)
    proxy = POOL * cost["proxy"] * (1 + GRADIENT / LEARN_EVERY)
    print(f"The proxy costs {proxy / half:.1%} of a step of the main network.", flush=True)
    for epochs in options.epochs:
        for plan in ("proxy", "random half", "all"):
            longer = epochs * (1 + (plan != "proxy") * proxy / half)
            errors, nlls = [], []
            for seed in options.seeds:
                network = train(plan, longer, seed, train_images, train_labels, networks(options.model, data, seed))
                validation = logits_of(network, images[held_out.to(device)]).double().numpy()
                scaling = TemperatureScaling().fit(validation, labels[held_out].numpy())
                test = logits_of(network, test_images).double().numpy()
                judged = evaluate(scaling(Predictions.from_logits(test, data.test.labels.numpy())), n_resamples=0)
                errors.append(100 * judged.test_error)
                nlls.append(judged.nll)
            found = [
                f"{statistics.mean(row):.{digits}f} ± {statistics.stdev(row) if len(row) > 1 else 0:.{digits}f}"
                for row, digits in ((errors, 2), (nlls, 4))
            ]
            print(
                f"{epochs:3d} epochs  {plan:12s} {longer:5.1f} x half  error {found[0]} %  NLL {found[1]}", flush=True
            )


if __name__ == "__main__":
    main()
