"""Make docs/losses/gradients.{png,svg}: what each loss does to the top logit, over confidence.

python docs/make/losses.py
"""

from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure

from calibrant import losses

mpl.rcParams["svg.hashsalt"] = "calibrant"  # the same file from the same numbers

CLASSES, OTHERS = 10, 499
OUT = Path(__file__).parents[1] / "losses"
RIGHT, WRONG = "#0072b2", "#d55e00"  # told apart with any colour vision, and in grey by their dashes
PER_SAMPLE = {
    "CrossEntropy()": losses.CrossEntropy(),
    "CrossEntropy(0.05)": losses.CrossEntropy(0.05),
    "Brier()": losses.Brier(),
    "Focal(3)": losses.Focal(3.0),
    "SampleDependentFocal()": losses.SampleDependentFocal(),
    "DualFocal(5)": losses.DualFocal(5.0),
    "BSCEGRA()": losses.BSCEGRA(),
    "EntropyPenalty()": losses.EntropyPenalty(),
    "LogitMargin(4)": losses.LogitMargin(4.0),
}
STATISTICS = {
    "10 * HuberCalibration()": 10 * losses.HuberCalibration(),
    "DCA()": losses.DCA(),
    "MDCA()": losses.MDCA(),
    "MMCE()": losses.MMCE(),
    "SoftECE()": losses.SoftECE(),
}
CONFIDENCE = torch.linspace(0.12, 0.995, 90, dtype=torch.float64)


def sample(confidence):
    """Log-probabilities of one prediction for class 0; the other classes share the rest alike."""
    rest = ((1 - confidence) / (CLASSES - 1)).expand(CLASSES - 1)
    return torch.cat((confidence.reshape(1), rest)).log()


def context(bias):
    """The other samples of the batch: class 0 predicted, right as often as their confidence less `bias` says."""
    confidence = torch.linspace(0.12, 0.99, OTHERS, dtype=torch.float64)
    logits = torch.stack([sample(c) for c in confidence])
    # Right and wrong evenly mixed at every confidence: a step of the running sum is a right one.
    expected = (confidence - bias).clamp(0, 1).cumsum(0)
    right = expected.floor() > (expected - (confidence - bias).clamp(0, 1)).floor()
    targets = torch.where(right, 0, torch.arange(OTHERS) % (CLASSES - 1) + 1)
    return logits, targets


def curve(loss, target, batch=None):
    """Derivative by the top logit of the sample, as if it were alone: times the batch size."""
    slopes = []
    for confidence in CONFIDENCE:
        logits = sample(confidence).unsqueeze(0)
        targets = torch.tensor([target])
        if batch is not None:
            logits, targets = torch.cat((logits, batch[0])), torch.cat((targets, batch[1]))
        logits.requires_grad_()
        (gradient,) = torch.autograd.grad(loss(logits, targets), logits)
        slopes.append(float(gradient[0, 0]) * len(targets))
    return slopes


def draw(axes, title, curves):
    for target, colour, dashes in ((0, RIGHT, "-"), (1, WRONG, "--")):
        axes.plot(CONFIDENCE, curves(target), dashes, color=colour, linewidth=1.8)
    axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
    axes.set_title(title, fontsize=9, family="monospace")
    axes.set_xlim(0.1, 1)
    axes.margins(y=0.12)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def legend(axes):
    axes.axis("off")
    axes.plot([], [], "-", color=RIGHT, linewidth=1.8, label="prediction is right")
    axes.plot([], [], "--", color=WRONG, linewidth=1.8, label="prediction is wrong")
    axes.legend(loc="upper left", frameon=False, fontsize=10)
    note = "above 0: the step lowers\nthe top logit\nbelow 0: it raises it\n\nown scale in each panel"
    axes.text(0.05, 0.58, note, fontsize=9.5, va="top", transform=axes.transAxes)


def main():
    figure = Figure(figsize=(13.5, 10.5), layout="constrained")
    top, middle, bottom = figure.subfigures(3, 1, height_ratios=[2, 1, 1])
    panels = top.subplots(2, 5).flat
    top.suptitle("Losses of single samples", fontsize=11, weight="bold")
    for axes, (title, loss) in zip(panels, PER_SAMPLE.items(), strict=False):
        draw(axes, title, lambda target, loss=loss: curve(loss, target))
    legend(panels[len(PER_SAMPLE)])
    for part, words, bias in ((middle, "over", 0.15), (bottom, "under", -0.15)):
        part.suptitle(f"Losses of the whole batch, in a batch that is {words}-confident", fontsize=11, weight="bold")
        batch = context(bias)
        for axes, (title, loss) in zip(part.subplots(1, 5), STATISTICS.items(), strict=True):
            draw(axes, title, lambda target, loss=loss, batch=batch: curve(loss, target, batch))
    figure.supxlabel("confidence of the sample", fontsize=11)
    figure.supylabel("derivative of the loss by the sample's top logit, times the batch size", fontsize=11)
    OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT / "gradients.png", dpi=110)
    figure.savefig(OUT / "gradients.svg", metadata={"Date": None})
    print(*(OUT / name for name in ("gradients.png", "gradients.svg")), sep="\n")


if __name__ == "__main__":
    main()
