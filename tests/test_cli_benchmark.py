"""`andrea benchmark`: what is measured, what a person reads, and what is refused."""

from __future__ import annotations

import json
import signal

import pytest
from typer.testing import CliRunner

from andrea.cli import app
from andrea.cli_benchmark import choose_precision, configuration, report
from andrea.engine import benchmark, suggestion
from andrea.engine.benchmark import measure_peer
from andrea.errors import AndreaError
from andrea.types import Device

CPU = Device("cpu", "cpu")
SIZES = ("n_layer", "n_head", "d_model", "context", "vocabulary", "batch_size")
TINY = ["--layers", "1", "--heads", "1", "--width", "16", "--context", "8", "--vocabulary", "20", "--batch", "2"]


def call(*arguments):
    """Run the command on the CPU."""
    return CliRunner().invoke(app, ["benchmark", *arguments, "--device", "cpu"])


def test_measures_a_model_on_the_cpu():
    """One document: the shape asked for, a real time, and nothing that a CPU does not know."""
    done = call("12M", *TINY, "--accumulation", "3", "--steps", "2", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["model"] == {"n_layer": 1, "n_head": 1, "d_model": 16, "context": 8}
    assert (found["vocabulary"], found["batch_size"], found["accumulation"], found["precision"]) == (20, 2, 3, "fp32")
    assert 0 < found["median_ms"] <= found["p95_ms"]
    # A quotient of the same numbers, rounded once more.
    assert found["tokens_per_second"] == pytest.approx(2 * 3 * 8 / found["median_ms"] * 1e3)
    assert found["share_of_peak"] is None
    assert not {"device_ms", "host_ms", "memory_measured", "torch"} & set(found)


def test_options_of_the_engine_can_be_set(monkeypatch):
    """Also those of a card, checked anywhere; sizes have options of their own."""
    asked = []
    monkeypatch.setattr(benchmark, "measure", lambda config, *_: asked.append(config.options) or {})
    call(*TINY, "--set", "engine.overlap=true", "--set", "engine.slices=2")
    assert asked == [{"overlap": True, "slices": 2}]
    wrong = {
        "engine.overlap=1": "engine.overlap is 1",
        "engine.overlpa=true": "no option overlpa",
        "batch.batch_size=8": "--batch",
        "engine=1": "for instance --set engine.graph=false",
        "engine.graph": "not KEY=VALUE",
    }
    for setting, said in wrong.items():
        with pytest.raises(AndreaError) as caught:
            configuration("12M", {}, [setting])
        assert said in f"{caught.value.message} {caught.value.hint}"


def test_a_person_reads_unknown_where_nothing_is_known():
    """On the CPU no line pretends to know a card."""
    done = call(*TINY, "--steps", "1")
    lines = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert lines["card"] == "unknown busy, unknown idle between steps"
    assert lines["arithmetic"].endswith("unknown of the dense peak")
    assert lines["memory"].endswith("unknown by the driver")


def test_progress_is_told_beside_the_figures():
    """Plain lines, one for each stage and each timed step, on standard error; --json stays one document."""
    done = call(*TINY, "--steps", "2", "--json")
    lines = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines if "..." in line] == [
        "warming up ...",
        "timing steps ...",
        "timed step 1 of 2",
        "timed step 2 of 2",
    ]
    assert json.loads(done.stdout)["median_ms"] > 0


def test_nothing_is_told_while_a_card_is_timed(monkeypatch):
    """There only the stages are: drawing would take the host's time from the steps that are measured."""
    config, _ = configuration("12M", dict(zip(SIZES, (1, 1, 16, 8, 20, 2), strict=True)))
    reference = benchmark.open_engine(config, CPU, choose_precision(None, {}, CPU))
    monkeypatch.setattr(benchmark, "open_engine", lambda *_: reference)
    told = []
    card = Device("cuda", "card", (9, 0))
    benchmark.measure(config, card, choose_precision(None, {}, CPU), 3, 1, tell=lambda *what: told.append(what))
    assert told == [("warming up", 0, 1), ("timing steps", 0, 3)]


def test_a_step_is_divided_and_measured():
    """A line for every division, and what to type for the fastest; --json says the same."""
    tiny = TINY[: TINY.index("--batch")]
    done = call(*tiny, "--suggest", "32")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["4", "1"], ["2", "2"], ["1", "4"]]
    best = max(lines[1:4], key=lambda line: float(line.split()[-1].replace(",", ""))).split()
    assert lines[4] == f"fastest: --set batch.batch_size={best[0]} --set batch.accumulation={best[1]}"
    assert [line.removesuffix(" ...") for line in done.stderr.splitlines() if "rows" in line] == [
        f"batch size {size} of 4 rows" for size in (4, 2, 1)
    ]
    found = json.loads(call(*tiny, "--suggest", "32", "--json").stdout)
    assert found["set"][0] == f"batch.batch_size={found['fastest']['batch_size']}"
    assert found["fastest"] in found["divisions"]


def test_a_signal_ends_the_search_with_what_there_is(monkeypatch):
    """Ctrl-C does not wait for the division at work; the table has those before it, and the code is the signal's."""
    answers = iter([{"median_ms": 2.0, "tokens_per_second": 16000.0}])

    def measure(*_):
        for answer in answers:
            return answer
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the signal has ended it")

    monkeypatch.setattr(suggestion, "measure", measure)
    # A shell that starts this in its background has SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        done = call(*TINY[: TINY.index("--batch")], "--suggest", "32")
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.exit_code == 130
    lines = done.stdout.splitlines()
    assert lines[1].split()[-2:] == ["2.0", "16,000"]
    assert lines[2:] == ["fastest of these: --set batch.batch_size=4 --set batch.accumulation=1"]


def test_report_of_a_card():
    """Shares, ratio and each group of launches with its rate."""
    groups = [
        {"name": "attention", "launches": 2, "milliseconds": 3.0, "operations": 3 * 10**11, "share_of_roof": 0.1},
        {"name": "k_sort", "launches": 1, "milliseconds": 1.0, "operations": 0, "bytes": 0, "share_of_roof": None},
    ]
    document = {
        "model": {"n_layer": 6, "n_head": 12, "d_model": 384, "context": 1024},
        "vocabulary": 4353,
        "device": "card",
        "batch_size": 8,
        "accumulation": 1,
        "precision": "bf16",
        "median_ms": 4.0,
        "p95_ms": 5.0,
        "tokens_per_second": 2_048_000.0,
        "model_tflops": 180.0,
        "share_of_peak": 0.25,
        "memory_planned": 2**30,
        "memory_measured": 2**30,
        "device_ms": 3.9,
        "idle_ms": 0.1,
        "host_ms": 0.2,
        "torch": {"tokens_per_second": 1_024_000.0, "version": "2", "backend": "cudnn"},
        "ratio": 2.0,
        "kernels": groups,
    }
    text = "\n".join(report(document))
    for words in ("25.0% of the dense peak", "1.000 GiB by the driver", "3.900 ms busy, 0.100 ms idle", "ratio  2.00"):
        assert words in text
    first, second = (line.split() for line in text.splitlines() if line.endswith(("attention", "k_sort")))
    assert first == ["3.0000", "75.0%", "2", "100.0", "TFLOP/s", "10%", "attention"]
    assert second == ["1.0000", "25.0%", "1", "unknown", "unknown", "k_sort"]


def test_an_experiment_brings_its_shape_and_vocabulary():
    """Model, batch and the ids that its tokenizer will learn are the experiment's; options change single sizes."""
    config, options = configuration("quickstart", {"n_layer": 2, "batch_size": None})
    assert (config.model.n_layer, config.model.d_model, config.model.context) == (2, 128, 128)
    assert (config.batch_size, config.vocabulary) == (8, 257 + 1024)
    assert "tokenizer.harris" in options


def test_precision_is_the_cards_best_unless_named():
    """bf16 where the card has it, else fp32; the experiment's options reach the plugin."""
    card = Device("cuda", "card", (9, 0))
    assert choose_precision(None, {}, card).name == "bf16"
    assert (
        choose_precision(None, {}, CPU).name == choose_precision(None, {}, Device("cuda", "old", (7, 5))).name == "fp32"
    )
    assert choose_precision(None, {"precision.fp16": {"loss_scale": 8.0}}, card).loss_scale == 8
    assert choose_precision("precision.tf32", {}, card).name == "tf32"


@pytest.mark.parametrize(
    ("arguments", "words", "hint"),
    [
        (["13M"], "there is no model or experiment '13M'", "12M"),
        (["--precision", "fp23"], "there is no precision 'fp23'", "fp32"),
        (["--precision", "bf16"], "needs a card", "fp32"),
        (["--width", "0"], "d_model 0 is less than 1", "at least 1"),
        (["--width", "100"], "not divisible", "n_head"),
        (["--steps", "0"], "less than one step", "--steps"),
        (["--batch", "0"], "batch_size 0 is less than 1", "at least 1"),
        (["--tune"], "--tune is for a card", "--device cuda"),
        (["--kernels"], "--kernels is for a card", "--device cuda"),
        (["--suggest", "1000"], "1000 tokens is not one row of 1024 or several whole ones", "1024"),
        (["--suggest", "0"], "0 tokens is not one row", "1024"),
        (["--suggest", "1024", "--batch", "4"], "--batch says nothing to it", "leave out --batch"),
        (["--peer"], "--peer measures PyTorch on a card", "--device cuda"),
    ],
)
def test_refusals_say_what_to_type(arguments, words, hint):
    """What cannot be done is refused before anything is measured."""
    error = call(*arguments).exception
    assert isinstance(error, AndreaError)
    assert words in error.message
    assert hint in error.hint


def test_the_peers_answer_and_its_failures(tmp_path, monkeypatch):
    """The twin runs in a process of its own with the model's sizes; what goes wrong there is said."""
    config, _ = configuration("12M", {"batch_size": 3})
    with pytest.raises(
        AndreaError, match="not installed" if benchmark.importlib.util.find_spec("torch") is None else "is"
    ):
        measure_peer(config, script=tmp_path / "absent.py")
    monkeypatch.setattr(benchmark.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(AndreaError, match="is missing"):
        measure_peer(config, script=tmp_path / "absent.py")
    script = tmp_path / "peer.py"
    script.write_text(
        "import json, sys\nprint('noise')\n"
        "print(json.dumps({'torch': '9', 'results': [{'arguments': sys.argv[1:], 'tokens_per_second': 5}]}))"
    )
    found = measure_peer(config, script=script)
    assert (found["version"], found["tokens_per_second"]) == ("9", 5)
    pairs = dict(zip(found["arguments"][::2], found["arguments"][1::2], strict=True))
    assert (pairs["--layers"], pairs["--width"], pairs["--vocabulary"], pairs["--batch"]) == ("6", "384", "4353", "3")
    script.write_text("raise SystemExit('no card here')")
    with pytest.raises(AndreaError, match="no card here"):
        measure_peer(config, script=script)
