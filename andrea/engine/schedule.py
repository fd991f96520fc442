"""How the learning rate moves with the step, and the optimizer's constants."""

from __future__ import annotations

import math

from attrs import frozen

from andrea.errors import AndreaError


@frozen
class ScheduleConfig:
    """Learning rate over the run: a cosine from `peak` to `peak` x `floor`, under a linear warm-up.

    Attributes
    ----------
    steps
        Horizon of the cosine. Where the run stops is not its business.
    warmup_steps
        Steps until the warm-up factor is 1.
    peak
        Highest rate.
    floor
        Lowest rate as a share of the peak, held after the horizon.
    """

    steps: int = 20_000
    warmup_steps: int = 2_000
    peak: float = 3e-4
    floor: float = 0.1

    def __attrs_post_init__(self) -> None:
        _refuse(
            self,
            "schedule",
            steps=(self.steps >= 1, "at least 1", "20000"),
            warmup_steps=(self.warmup_steps >= 0, "at least 0, which leaves the warm-up out", "2000"),
            peak=(self.peak > 0, "above 0", "3e-4"),
            floor=(0 <= self.floor <= 1, "from 0 to 1: a share of the peak", "0.1"),
        )


@frozen
class OptimizerConfig:
    """AdamW with decoupled decay on matrices, after clipping one global norm.

    Attributes
    ----------
    beta1, beta2, epsilon
        Of Adam's moments.
    weight_decay
        On matrices only.
    max_grad_norm
        The global 2-norm is clipped to this; 0 clips nothing.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0

    def __attrs_post_init__(self) -> None:
        _refuse(
            self,
            "optimizer",
            beta1=(0 <= self.beta1 < 1, "at least 0 and below 1", "0.9"),
            beta2=(0 <= self.beta2 < 1, "at least 0 and below 1", "0.999"),
            epsilon=(self.epsilon > 0, "above 0", "1e-8"),
            weight_decay=(self.weight_decay >= 0, "at least 0, which decays nothing", "0.1"),
            max_grad_norm=(self.max_grad_norm >= 0, "at least 0, which clips nothing", "1.0"),
        )


def _refuse(config: object, section: str, **rules: tuple[bool, str, str]) -> None:
    """Refuse every value for which its rule does not hold; a rule is (holds, what is allowed, for instance)."""
    wrong = {name: rule for name, rule in rules.items() if not rule[0]}
    if wrong:
        raise AndreaError(
            "\n".join(f"{section}.{name} is {getattr(config, name)}; it must be {wrong[name][1]}" for name in wrong),
            "for instance "
            + " ".join(f"--set {section}.{name}={instance}" for name, (_, _, instance) in wrong.items()),
        )


def learning_rate(schedule: ScheduleConfig, step: int) -> float:
    """Return the rate of a step: cosine(step) x min(1, (step + 1) / warmup_steps).

    The cosine runs from step 0 to the horizon and stays at its floor after it.
    """
    progress = min(step / schedule.steps, 1.0)
    cosine = schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * progress))
    warmup = min(1.0, (step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    return schedule.peak * cosine * warmup
