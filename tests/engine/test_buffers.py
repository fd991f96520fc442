"""The memory plan adds up, does not overlap, and refuses what does not fit with what would."""

from __future__ import annotations

import itertools

import pytest
from attrs import evolve

from andrea.engine import EngineConfig
from andrea.engine.buffers import (
    ALIGNMENT,
    MemoryPlan,
    aligned,
    check_fits,
    describe_memory,
    largest_batch,
    padded_vocabulary,
    plan_memory,
    readable,
)
from andrea.engine.model import ModelConfig, parameter_count
from andrea.errors import AndreaError
from andrea.types import Precision

SMALL = EngineConfig(ModelConfig(2, 2, 64, 32), vocabulary=300, batch_size=4)
FP32, BF16 = Precision("fp32"), Precision("bf16", storage="bfloat16", multiply="bfloat16")
FP16 = Precision("fp16", storage="float16", multiply="float16", loss_scale=65536.0)
FAMILY = {
    "12M": EngineConfig(ModelConfig(6, 12, 384), vocabulary=4353, batch_size=8),
    "120M": EngineConfig(ModelConfig(12, 12, 768), vocabulary=8449, batch_size=8),
    "480M": EngineConfig(ModelConfig(16, 24, 1536), vocabulary=8449, batch_size=8),
}


@pytest.mark.parametrize(("vocabulary", "padded"), [(8449, 8576), (4353, 4480), (128, 128), (1, 128)])
def test_vocabulary_is_padded_to_128(vocabulary, padded):
    """The padded vocabulary is the next multiple of 128."""
    assert padded_vocabulary(vocabulary) == padded


def test_buffers_do_not_overlap():
    """Offsets are aligned, in order, and every buffer ends before the next begins."""
    plan = plan_memory(SMALL, BF16)
    end = 0
    for buffer in plan:
        offset = plan.offsets[buffer.name]
        assert offset % ALIGNMENT == 0
        assert offset >= end
        end = offset + buffer.bytes
    assert plan.total >= end
    assert plan.total - sum(aligned(max(b.bytes, 1)) for b in plan) == 0


def test_name_is_taken_once():
    """Two buffers of one name are an error."""
    plan = MemoryPlan()
    plan.add("a", "first", (3,), "float32")
    with pytest.raises(ValueError, match="twice"):
        plan.add("a", "second", (3,), "float32")


@pytest.mark.parametrize("precision", [FP32, BF16])
def test_state_is_float32_in_every_precision(precision):
    """Master weights and both moments are float32 of the published size; activations take the storage type."""
    plan = plan_memory(SMALL, precision)
    count = parameter_count(SMALL.model, SMALL.vocabulary)
    for name in ("weights", "first_moments", "second_moments"):
        assert (plan[name].shape, plan[name].dtype) == ((count,), "float32")
    assert plan["gradients"].dtype == "float32"
    assert plan["layer1.preactivation"].dtype == precision.storage


def test_products_in_8_bits_are_planned_by_width():
    """A byte for each weight in each order, and for each input that waits; narrower models have nothing."""
    eight = evolve(BF16, name="fp8", fp8={64: ("w_1.y", "w_2.y", "w_1.dx", "w_2.dw", "w_o.dw")})
    plan, C, L = plan_memory(SMALL, eight), SMALL.model.d_model, SMALL.model.n_layer
    N = SMALL.batch_size * SMALL.model.context
    assert plan["fp8_weights"].bytes == L * 3 * 4 * C * C
    assert plan["fp8_history"].shape == (8 * L, 16)  # of every tensor, whatever the products are
    assert plan["fp8_scales"].shape == (8 * L + 2 * L, 2, 4)
    assert plan["fp8_operand"].shape == (N, 4 * C)
    assert plan["fp8_turned"].shape == (4 * C, N)
    assert plan["fp8_inputs"].bytes == L * (4 * C + C) * N
    assert list(plan_memory(SMALL, evolve(eight, fp8={65: ("w_1.y",)}))) == list(plan_memory(SMALL, BF16))


def test_plan_grows_with_batch_not_with_accumulation():
    """More rows at once cost memory; more micro-batches cost only their tokens."""
    base = plan_memory(SMALL, BF16).total
    row = SMALL.model.context * SMALL.model.d_model * 2 * 16 * SMALL.model.n_layer  # 16 saved widths a layer
    assert plan_memory(evolve(SMALL, batch_size=8), BF16).total > base + 4 * row
    extra = plan_memory(evolve(SMALL, accumulation=4), BF16).total - base
    tokens = 3 * SMALL.batch_size * SMALL.model.context
    assert 0 < extra <= tokens * 4 * 6 + 16 * ALIGNMENT


def test_family_fits_the_promised_cards():
    """12M in fp32 at batch 8 fits 8 GB; 120M in fp16 at batch 8 fits 12 GB."""
    assert plan_memory(FAMILY["12M"], FP32).total < 8e9
    assert plan_memory(FAMILY["120M"], FP16).total < 12e9


def test_parts_of_buffers_have_names():
    """A part takes no memory, lies where its buffer does, and cannot reach beyond it."""
    plan = MemoryPlan()
    plan.add("first", "a", (5,), "float32")
    plan.add("whole", "b", (4, 8), "bfloat16")
    total = plan.total
    plan.share("part", (2, 8), "whole", 16)
    assert (plan.total, [buffer.name for buffer in plan]) == (total, ["first", "whole"])
    assert plan.offsets["part"] == plan.offsets["whole"] + 2 * 16
    assert (plan["part"].shape, plan["part"].dtype, plan["part"].bytes) == ((2, 8), "bfloat16", 32)
    with pytest.raises(ValueError, match="twice"):
        plan.share("part", (1,), "whole")
    with pytest.raises(ValueError, match="does not lie inside"):
        plan.share("beyond", (2, 8), "whole", 17)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_keys_and_values_disturb_nothing(batch_size):
    """They overlap neither each other nor, in training and without, what reading a prompt in the first row writes."""
    for training in (True, False):
        config = evolve(SMALL, batch_size=batch_size, training=training)
        plan, T, C = plan_memory(config, BF16), config.model.context, config.model.d_model
        caches = [f"layer{i}.{name}" for i in range(config.model.n_layer) for name in ("keys", "values")]
        read = [(f"layer{i}.preactivation", 2 * 4 * T * C) for i in range(config.model.n_layer)] * (batch_size > 1)
        read += [(f"layer{i}.qkv", 2 * 3 * T * C) for i in range(config.model.n_layer)]
        pieces = [(plan.offsets[name], plan[name].bytes) for name in caches]
        pieces += {(plan.offsets[name], size) for name, size in read}
        ends = sorted((begin, begin + size) for begin, size in pieces)
        assert all(plan[name].bytes == 2 * batch_size * T * C for name in caches)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))


@pytest.mark.parametrize(
    ("name", "batch_size", "gib", "without"),
    [("120M", 64, 21.99, 5.72), ("120M", 1, 2.06, 0.71), ("480M", 32, 33.89, 8.13), ("480M", 1, 8.97, 2.98)],
)
def test_without_training_a_quarter_to_a_third_is_held(name, batch_size, gib, without):
    """No gradients, no moments, one layer's activations: the bytes of the larger models, in GiB."""
    config = evolve(FAMILY[name], batch_size=batch_size)
    plans = [plan_memory(evolve(config, training=training), BF16) for training in (True, False)]
    assert [round(plan.total / 2**30, 2) for plan in plans] == [gib, without]
    names = {buffer.name for buffer in plans[1]}
    assert not names & {"first_moments", "second_moments", "gradients", "dstream", "norm_shares", "layer1.hidden"}
    assert {name for name in plans[0].offsets if name.startswith("layer")} <= set(plans[1].offsets)


@pytest.mark.parametrize("training", [True, False])
def test_products_find_aligned_matrices(training):
    """What a product reads or writes begins at a multiple of 256 bytes, whatever the shape, as cuBLASLt assumes."""
    plan = plan_memory(evolve(SMALL, model=ModelConfig(3, 3, 96, 7), training=training), BF16)
    products = ("ln1.y", "qkv", "heads", "ln2.y", "preactivation", "hidden")
    assert all(plan.offsets[f"layer{i}.{name}"] % ALIGNMENT == 0 for i in range(3) for name in products)


def test_refusal_names_the_batch_that_fits():
    """Too little memory is refused with needed, free, and a batch that really fits while one more does not."""

    def plan(config):
        return plan_memory(config, BF16)

    config = evolve(SMALL, batch_size=64)
    free = plan(evolve(SMALL, batch_size=21)).total
    with pytest.raises(AndreaError, match="batch_size 64 needs") as error:
        check_fits(config, free, plan)
    assert readable(free) in error.value.message
    assert "batch_size 21 fits: --set batch.batch_size=21" in error.value.hint
    assert largest_batch(config, free - 1, plan) == 20
    assert check_fits(evolve(config, batch_size=21), free, plan).total == free
    with pytest.raises(AndreaError) as error:
        check_fits(config, 1000, plan)
    assert "not even batch_size 1" in error.value.hint
    using = evolve(config, training=False)
    with pytest.raises(AndreaError, match="64 rows at once need") as error:
        check_fits(using, plan(evolve(using, batch_size=9)).total, plan)
    assert error.value.hint == "9 at once would fit; --device cpu needs none of it"


def test_description_names_what_takes_memory():
    """The lines are the plan's sums by purpose, the largest first, and the last is what is allocated."""
    config = FAMILY["120M"]
    plan, lines = plan_memory(config, BF16), describe_memory(config, BF16)
    assert lines[-1].split() == [*readable(plan.total).split(), "in", "all"]
    moments = 2 * plan["first_moments"].bytes
    assert f"{readable(moments):>12}  moments of AdamW" in lines
    purposes = [line[14:] for line in lines[:-2]]
    sizes = [sum(b.bytes for b in plan if b.purpose == purpose) for purpose in purposes]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] >= plan.total / 100
    assert lines[-2] == f"{readable(plan.total - sum(sizes)):>12}  all else"
    assert len(purposes) == len(set(purposes)) >= 8


@pytest.mark.parametrize(
    ("size", "text"), [(12, "12 B"), (2048, "2.00 KiB"), (3 << 20, "3.00 MiB"), (5 << 40, "5120.00 GiB")]
)
def test_sizes_are_readable(size, text):
    """Sizes read as a person writes them."""
    assert readable(size) == text
