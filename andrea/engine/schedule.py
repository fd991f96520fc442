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
        if self.steps < 1 or self.warmup_steps < 0:
            raise AndreaError(f"schedule.steps {self.steps} and warmup_steps {self.warmup_steps} must be positive")
        if not (self.peak > 0 and 0 <= self.floor <= 1):
            raise AndreaError(f"schedule.peak {self.peak} must be above 0 and schedule.floor {self.floor} in [0, 1]")


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
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise AndreaError(
                f"optimizer.beta1 is {self.beta1} and optimizer.beta2 {self.beta2}",
                "both are at least 0 and below 1, as 0.9 and 0.999",
            )
        if not (self.epsilon > 0 and self.weight_decay >= 0 and self.max_grad_norm >= 0):
            raise AndreaError(
                f"optimizer.epsilon is {self.epsilon}, weight_decay {self.weight_decay} and max_grad_norm "
                f"{self.max_grad_norm}",
                "epsilon is above 0, as 1e-8; the others are at least 0, and 0 switches them off",
            )


def learning_rate(schedule: ScheduleConfig, step: int) -> float:
    """Return the rate of a step: cosine(step) x min(1, (step + 1) / warmup_steps).

    The cosine runs from step 0 to the horizon and stays at its floor after it.
    """
    progress = min(step / schedule.steps, 1.0)
    cosine = schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * progress))
    warmup = min(1.0, (step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    return schedule.peak * cosine * warmup
