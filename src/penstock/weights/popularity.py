"""How often each expert is chosen in a synthetic model: Zipf's law, for routers and for hash tables alike.

The expert of rank r has weight r^-skew, and a token draws its experts one after another without putting them
back.  A hash table is drawn exactly so.  A router reaches the same frequencies through its bias.
"""

from statistics import NormalDist

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_RAREST = 1e-9  # normal quantiles beyond this are of no use to anyone
_JITTER = 0.02  # bias noise, small against the scores' deviation of 0.3: there to be noticed when left out


def inclusion(experts: int, used: int, skew: float) -> Floats:
    """Chance of each rank, best first, to be among the `used` experts of a token; sums to `used`."""
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    # Drawing without replacement is a race of exponential clocks: at time t, 1 − exp(−t · weight) of each rank
    # has arrived, and the race stops when `used` have.
    low, high = 0.0, 1e12
    for _ in range(200):
        time = (low + high) / 2
        if -np.expm1(-time * weights).sum() < used:
            low = time
        else:
            high = time
    return np.asarray(-np.expm1(-high * weights))


def router_bias(ranks: NDArray[np.int64], used: int, skew: float, rng: Generator) -> NDArray[np.float32]:
    """Selection bias [experts] for which standard normal router logits choose expert e as often as rank
    `ranks[e]` (0 = most popular) should be.

    Score plus bias passes a threshold with probability p when the bias lifts the score's upper p-quantile onto
    it; the threshold itself is the same for all experts, so it drops out.
    """
    chances = inclusion(len(ranks), used, skew).clip(_RAREST, 1 - _RAREST)
    quantiles = np.array([-NormalDist().inv_cdf(chance) for chance in chances])
    bias = -np.sqrt(np.logaddexp(0, quantiles))  # scores are sqrt(softplus(logit))
    bias -= bias.mean()
    return np.asarray(bias[ranks] + _JITTER * rng.standard_normal(len(ranks)), np.float32)


def hash_rows(
    ranks: NDArray[np.int64], used: int, skew: float, rows: int, rng: Generator
) -> NDArray[np.int32]:
    """Distinct expert ids for `rows` tokens, drawn by popularity.  [rows, used]"""
    slowness = ((ranks + 1.0) ** skew).astype(np.float32)
    arrivals = rng.standard_exponential((rows, len(ranks)), dtype=np.float32)
    arrivals *= slowness
    if used == len(ranks):
        return np.argsort(arrivals, axis=1).astype(np.int32)
    return np.argpartition(arrivals, used, axis=1)[:, :used].astype(np.int32)
