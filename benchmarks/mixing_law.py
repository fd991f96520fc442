"""What could any fixed mix gain? A law of each source's loss, fitted to the runs of a trial, and the mix it likes best.

    python benchmarks/mixing_law.py benchmarks/results/trials/mixed/report.json [--without specified]

Source k that is given n tokens of its U ends at L_k = c_k - b_k ln(d), bits per byte, where d is what n tokens are
worth: n up to one epoch, then U (1 + R (1 - exp(-(n / U - 1) / R))) with R = 15.39 (Muennighoff et al., "Scaling
Data-Constrained Language Models", 2023). c_k and b_k >= 0 by least squares over the runs, one law a source: what
sources teach each other is left out, so it is trusted between the runs and not beyond. So is the harm of very many
epochs: a run that reads a source more than 40 times does not count for that source's law, and is named. The best mix
gives each source tokens until one more is worth the same everywhere: share_k is proportional to
b_k n_k d'(n_k) / d(n_k).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from attrs import frozen

Floats = npt.NDArray[np.float64]
R = 15.39
MOST_PASSES = 40  # beyond, what is read again is learned by heart, and the held-out loss rises: the law only falls
LEAST = 1e-5  # share of a source that was never pulled, for its logarithm


@frozen(eq=False)
class Law:
    """The fitted law: `c`, `b` and `sizes` in tokens, float64 (S,), of runs of `tokens` tokens."""

    c: Floats
    b: Floats
    sizes: Floats
    tokens: float

    def losses(self, shares: Floats) -> Floats:
        """Return the bits per byte of every source under shares, float64 (..., S)."""
        tokens = np.where(self.b > 0, worth(shares * self.tokens, self.sizes), 1.0)  # what gains nothing may get none
        return np.asarray(self.c - self.b * np.log(tokens))

    def best(self, rounds: int = 500) -> Floats:
        """Return the shares with the lowest mean, float64 (S,)."""
        shares = np.full(len(self.b), 1 / len(self.b))
        for _ in range(rounds):
            n = shares * self.tokens
            wanted = self.b * elasticity(n, self.sizes)
            shares = np.sqrt(shares * wanted / wanted.sum())  # half a step: the fixed point is approached from one side
            shares /= shares.sum()
        return shares


def worth(n: Floats, sizes: Floats) -> Floats:
    """Return what `n` tokens of sources of `sizes` tokens are worth in fresh ones."""
    more = np.maximum(n / sizes - 1, 0)
    return np.asarray(np.minimum(n, sizes) + sizes * R * (1 - np.exp(-more / R)))


def elasticity(n: Floats, sizes: Floats) -> Floats:
    """Return by how many percent `worth` grows when `n` grows by one; 1 up to one epoch, so also at 0."""
    slope = np.exp(-np.maximum(n / sizes - 1, 0) / R)
    return np.divide(n * slope, worth(n, sizes), out=np.ones_like(slope), where=n > 0)


def fit(losses: Floats, shares: Floats, sizes: Floats, tokens: float, counts: npt.NDArray[np.bool_]) -> Law:
    """Fit the law of every source to losses and shares of runs, float64 (runs, S), those that count for it."""
    x = np.log(worth(shares * tokens, sizes))
    x0, y0 = (np.average(one, axis=0, weights=counts) for one in (x, losses))
    covariance, variance = (np.sum((x - x0) * other * counts, axis=0) for other in (losses - y0, x - x0))
    b = np.maximum(-covariance / variance, 0.0)
    return Law(y0 + b * x0, b, sizes, tokens)


def main() -> None:
    """Print the law, how well it fits, and the mix that it likes best."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--without", action="append", default=[], help="an arm that the law is not fitted to")
    asked = parser.parse_args()
    runs = json.loads(asked.report.read_bytes())["runs"]
    names = list(runs[0]["bits_per_byte"])
    tokens = float(runs[0]["tokens"])
    losses = np.array([[run["bits_per_byte"][name] for name in names] for run in runs])
    shares = np.array([[max(run["shares"][name], LEAST) for name in names] for run in runs])
    passes = np.array([[max(run["epochs"][name], LEAST) for name in names] for run in runs])
    sizes = np.median(shares * tokens / passes, axis=0)
    fresh = passes <= MOST_PASSES
    counts = fresh & np.array([[run["arm"] not in asked.without] for run in runs])
    law = fit(losses, shares, sizes, tokens, counts)
    best, left = law.best(), np.where(counts, losses - law.losses(shares), np.nan)

    print("| source | b | left over | best share |\n|---|---|---|---|")
    for k, name in enumerate(names):
        print(f"| {name} | {law.b[k]:.3f} | {np.nanstd(left[:, k]):.4f} | {best[k]:.4f} |")
    print()
    for i, k in zip(*np.nonzero(~fresh), strict=True):
        print(f"{runs[i]['arm']}, seed {runs[i]['seed']}, reads {names[k]} {passes[i, k]:.0f} times: not in its law")
    print("\n| arm | seed | mean | by the law |\n|---|---|---|---|")
    for i, run in enumerate(runs):
        print(f"| {run['arm']} | {run['seed']} | {losses[i].mean():.4f} | {law.losses(shares[i]).mean():.4f} |")
    print(f"| the best mix | | | {law.losses(best).mean():.4f} |\n")
    print(json.dumps({"shares": dict(zip(names, best.round(4).tolist(), strict=True))}))


if __name__ == "__main__":
    main()
