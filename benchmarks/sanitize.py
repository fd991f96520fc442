"""A short life of the engine in every precision, for compute-sanitizer: two steps, an evaluation, some text.

The last two also without training. Odd and small sizes on purpose: racecheck is a thousand times slower than the card.
The graph is left out, because the tools follow single launches.

python benchmarks/sanitize.py [PRECISION ...]
"""

from __future__ import annotations

import sys

from attrs import evolve

from andrea.engine import Engine, EngineConfig, GenerateOptions, open_engine
from andrea.engine.benchmark import random_batch
from andrea.engine.device import find_device
from andrea.engine.fp8 import PRODUCTS
from andrea.engine.model import ModelConfig
from andrea.types import Precision

PRECISIONS = (
    Precision("fp32"),
    Precision("tf32", multiply="tf32"),
    Precision("fp16", "float16", "float16", loss_scale=1024.0),
    Precision("bf16", "bfloat16", "bfloat16"),
    Precision("fp8", "bfloat16", "bfloat16", fp8={0: PRODUCTS}),
)


def use(engine: Engine) -> None:
    """Evaluate, and write some text."""
    engine.evaluate(*random_batch(engine.config))
    engine.generate([[1], [2, 3]], GenerateOptions(max_tokens=2, top_p=0.9))


def main() -> None:
    """Run it in the precisions named, or in all."""
    names = [precision.name for precision in PRECISIONS]
    wanted = sys.argv[1:] or names
    if unknown := sorted(set(wanted) - set(names)):
        sys.exit(f"there is no precision {', '.join(unknown)}; there are {', '.join(names)}")
    device = find_device("cuda")
    for precision in (one for one in PRECISIONS if one.name in wanted):
        for model in (ModelConfig(1, 3, 96, context=19), ModelConfig(1, 1, 64, context=67)):
            config = EngineConfig(model, vocabulary=131, batch_size=2, accumulation=2, options={"graph": False})
            engine = open_engine(config, device, precision)
            for step in range(2):
                loss = engine.train_step(step, *random_batch(config, step)).row_losses.mean()
            use(engine)
            weights = engine.export_state()["weights"]
            engine.close()
            engine = open_engine(evolve(config, training=False), device, precision)
            engine.import_state({"weights": weights})
            use(engine)
            engine.close()
            print(precision.name, model.head_dim, float(loss), flush=True)


if __name__ == "__main__":
    main()
