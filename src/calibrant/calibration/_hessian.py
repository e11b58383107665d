"""Second derivatives of the NLL of affine maps, summed over cases: (diag(p) - p p') (x) f f'.

p are the probabilities and f the numbers that the score of a class is linear in. The parameters come in the order of
all weights, then all biases.
"""

import numpy as np

from calibrant.calibration._arrays import Floats


def of_own_features(p: Floats, features: Floats) -> Floats:
    """Where the score of a class is linear in its own feature."""
    flat = np.hstack([p * features, p])
    found = -(flat.T @ flat)
    weights, biases = np.arange(p.shape[1]), np.arange(p.shape[1]) + p.shape[1]
    found[weights, weights] += np.einsum("ij,ij,ij->j", p, features, features)
    found[weights, biases] += flat[:, weights].sum(axis=0)
    found[biases, weights] += flat[:, weights].sum(axis=0)
    found[biases, biases] += p.sum(axis=0)
    return found


def of_all_features(p: Floats, features: Floats) -> Floats:
    """Where the score of a class is linear in all features."""
    count, linear = p.shape[1], np.hstack([features, np.ones((len(p), 1))])
    flat = (p[:, :, None] * linear[:, None]).reshape(len(p), -1)
    found = -(flat.T @ flat).reshape(count, count + 1, count, count + 1)
    for each in range(count):
        found[each, :, each] += (p[:, each, None] * linear).T @ linear
    # From (class, its numbers) to the order of the parameters: all weights, then all biases.
    index = np.arange(count * (count + 1)).reshape(count, count + 1)
    order = np.concatenate([index[:, :-1].ravel(), index[:, -1]])
    return np.asarray(found.reshape(len(order), -1)[np.ix_(order, order)])
