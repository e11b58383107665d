"""Every loss with a slow reference: written from the formula, sample by sample, in float64, on probabilities.

Nothing here uses the package's own functions. Shared by the tests and by the worker of the multi-process test.
"""

import math

import numpy as np
import torch

from calibrant import losses


def softmax(row):
    weights = np.exp(np.asarray(row, dtype=np.float64) - max(row))
    return (weights / weights.sum()).tolist()


def log_softmax(row):
    shifted = np.asarray(row, dtype=np.float64) - max(row)
    return (shifted - np.log(np.exp(shifted).sum())).tolist()


def top(row):
    """Confidence and predicted class; the first of equals."""
    p = softmax(row)
    return max(p), int(np.argmax(row))


def per_sample(formula):
    """Mean of `formula(row of logits, target)` over the batch, weighted, divided by the batch size."""

    def reference(logits, targets, weights=None):
        weights = [1.0] * len(targets) if weights is None else weights
        values = [float(w) * formula(row, int(y)) for row, y, w in zip(logits, targets, weights, strict=True)]
        return math.fsum(values) / len(values)

    return reference


def smoothed(e):
    def formula(row, y):
        log_p = log_softmax(row)
        return -sum(((1 - e) * (k == y) + e / len(row)) * value for k, value in enumerate(log_p))

    return formula


def brier(row, y):
    return sum((p - (k == y)) ** 2 for k, p in enumerate(softmax(row)))


def focal(gamma):
    return lambda row, y: -((1 - softmax(row)[y]) ** gamma) * log_softmax(row)[y]


def flsd(row, y):
    p = softmax(row)[y]
    return -((1 - p) ** (5 if p < 0.2 else 3)) * log_softmax(row)[y]


def dual_focal(row, y):
    p = softmax(row)
    rival = max((q for q in p if q < p[y]), default=0.0)
    return -((1 - p[y] + rival) ** 5) * log_softmax(row)[y]


def bsce_gra(gamma):
    return lambda row, y: -(brier(row, y) ** (gamma / 2)) * log_softmax(row)[y]


_EDGES, _GAMMAS = (0.25, 0.5, 0.75), (3.0, -0.5, 0.5, -1.5)


def adafocal(row, y):
    p = softmax(row)[y]
    gamma = _GAMMAS[sum(p > edge for edge in _EDGES)]
    return -((1 - p if gamma > 0 else 1 + p) ** abs(gamma)) * log_softmax(row)[y]


def adapted(edges, gammas):
    """AdaFocal as after some validations; numbers that float32 holds exactly."""
    loss = losses.AdaFocal(len(gammas))
    loss.load_state_dict({"edges": torch.tensor(edges), "gammas": torch.tensor(gammas)})
    return loss


def negative_entropy(row, _):
    return sum(p * log_p for p, log_p in zip(softmax(row), log_softmax(row), strict=True))


def logit_margin(margin):
    def formula(row, _):
        largest = max(row)
        return sum(max(0.0, largest - z - margin) for z in row) / len(row)

    return formula


def gap(logits, targets):
    tops = [top(row) for row in logits]
    accuracy = sum(k == int(y) for (_, k), y in zip(tops, targets, strict=True)) / len(tops)
    return math.fsum(c for c, _ in tops) / len(tops) - accuracy


def huber(logits, targets, weights=None, alpha=0.005):
    g = abs(gap(logits, targets))
    return g * g / 2 if g < alpha else alpha * (g - alpha / 2)


def mdca(logits, targets, weights=None):
    p = np.array([softmax(row) for row in logits])
    frequency = np.array([np.mean(np.asarray(targets) == k) for k in range(p.shape[1])])
    return float(np.mean(np.abs(p.mean(axis=0) - frequency)))


def soft_ece(logits, targets, weights=None, n_bins=15, temperature=0.01):
    mass, confidence, accuracy = np.zeros(n_bins), np.zeros(n_bins), np.zeros(n_bins)
    for row, y in zip(logits, targets, strict=True):
        c, k = top(row)
        member = np.array(softmax([-((c - (j + 0.5) / n_bins) ** 2) / temperature for j in range(n_bins)]))
        mass, confidence, accuracy = mass + member, confidence + member * c, accuracy + member * (k == int(y))
    return float(np.sum(mass / len(targets) * np.abs(accuracy / mass - confidence / mass)))


def mmce(logits, targets, weights=None, width=0.4, weighted=True):
    """Pair by pair. Right and wrong pairs and cross pairs each divided once by their own count."""
    tops = [top(row) for row in logits]
    samples = [(c, k == int(y)) for (c, k), y in zip(tops, targets, strict=True)]
    n_right = sum(right for _, right in samples)
    n_wrong = len(samples) - n_right
    if weighted and 0 in (n_right, n_wrong):
        return 0.0
    terms = []
    for c_i, right_i in samples:
        for c_j, right_j in samples:
            kernel = math.exp(-abs(c_i - c_j) / width)
            if not weighted:
                terms.append((right_i - c_i) * (right_j - c_j) * kernel / len(samples) ** 2)
            elif right_i and right_j:
                terms.append((1 - c_i) * (1 - c_j) * kernel / n_right**2)
            elif not right_i and not right_j:
                terms.append(c_i * c_j * kernel / n_wrong**2)
            else:
                # Each cross pair comes twice in this double loop, which is the formula's factor 2.
                terms.append(
                    -(1 - (c_i if right_i else c_j)) * (c_j if right_i else c_i) * kernel / (n_right * n_wrong)
                )
    return math.sqrt(max(math.fsum(terms), 0.0)) if weighted else math.fsum(terms)


# name -> (loss, reference)
CASES = {
    "cross_entropy": (losses.CrossEntropy(), per_sample(smoothed(0.0))),
    "smoothed": (losses.CrossEntropy(0.1), per_sample(smoothed(0.1))),
    "brier": (losses.Brier(), per_sample(brier)),
    "focal": (losses.Focal(), per_sample(focal(3))),
    "focal_half": (losses.Focal(0.5), per_sample(focal(0.5))),
    "flsd": (losses.SampleDependentFocal(), per_sample(flsd)),
    "dual_focal": (losses.DualFocal(), per_sample(dual_focal)),
    "bsce_gra": (losses.BSCEGRA(), per_sample(bsce_gra(2))),
    "bsce_gra_3": (losses.BSCEGRA(3.0), per_sample(bsce_gra(3))),
    "adafocal": (adapted(_EDGES, _GAMMAS), per_sample(adafocal)),
    "entropy": (losses.EntropyPenalty(), per_sample(negative_entropy)),
    "margin": (losses.LogitMargin(), per_sample(logit_margin(10.0))),
    "margin_1": (losses.LogitMargin(1.0), per_sample(logit_margin(1.0))),
    "huber": (losses.HuberCalibration(), huber),
    "huber_wide": (losses.HuberCalibration(0.9), lambda z, y, w=None: huber(z, y, alpha=0.9)),
    "smooth_l1": (losses.HuberCalibration(kind="smooth-l1"), lambda z, y, w=None: huber(z, y) / 0.005),
    "dca": (losses.DCA(), lambda z, y, w=None: abs(gap(z, y))),
    "mdca": (losses.MDCA(), mdca),
    "soft_ece": (losses.SoftECE(), soft_ece),
    "mmce": (losses.MMCE(), mmce),
    "mmce_unweighted": (losses.MMCE(weighted=False), lambda z, y, w=None: mmce(z, y, weighted=False)),
    "sum_of_gaps": (
        losses.CrossEntropy() + 10 * (losses.HuberCalibration() + 0.1 * losses.MDCA()),
        lambda z, y, w=None: per_sample(smoothed(0.0))(z, y, w) + 10 * huber(z, y) + mdca(z, y),
    ),
    "sum": (
        losses.SampleDependentFocal() + 10 * losses.HuberCalibration() + 0.5 * (losses.MDCA() + 3 * losses.MMCE()),
        lambda z, y, w=None: per_sample(flsd)(z, y, w) + 10 * huber(z, y) + 0.5 * mdca(z, y) + 0.5 * 3 * mmce(z, y),
    ),
}
PER_SAMPLE = tuple(CASES)[: tuple(CASES).index("huber")]
# By design their gradient is not the derivative of their value; tests of their own hold it against its formula.
WEIGHTED_GRADIENT = ("bsce_gra", "bsce_gra_3")


def make_batch(n, k, seed=0, scale=3.0, dtype=torch.float32):
    """Random logits with a bias to the target, so that right and wrong predictions occur; weights in [0, 2]."""
    generator = torch.Generator().manual_seed(1000 * seed + 31 * n + k)
    targets = torch.randint(0, k, (n,), generator=generator)
    logits = torch.randn(n, k, generator=generator, dtype=torch.float64) * scale
    logits[torch.arange(n), targets] += torch.randn(n, generator=generator, dtype=torch.float64) * scale + scale
    weights = 2 * torch.rand(n, generator=generator, dtype=torch.float64)
    # Round first: the float64 reference must see exactly what the float32 loss sees.
    return logits.to(torch.float32).to(dtype), targets, weights.to(torch.float32).to(dtype)
