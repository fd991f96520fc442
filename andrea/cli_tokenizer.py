"""``andrea tokenizer``: train one, look at it, and see what text makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea.cli_answers import ending_as_asked, print_json, print_table
from andrea.cli_options import AsJson, DataFolder, Plugins, Settings, text_option
from andrea.errors import AndreaError

if TYPE_CHECKING:
    from andrea.diet import Saturation
    from andrea.vocabulary import Data

tokenizer = typer.Typer(no_args_is_help=True, help="Train a tokenizer, look at it, and see what text makes of it.")

LARGEST_SIZE = 1_000_000  # of a vocabulary
EXAMPLES = (
    "The unhappiness of governments is internationally disagreeable.",
    "She walked, talked and was walking to the establishments.",
    "Don't count 12345 on it!",
    "def read_lines(self, path):\n    return open(path).readlines()",
)
"""Sentences and code that show cuts when the user names no words."""


def _prepare(what: list[str], settings: list[str] | None, plugins: list[str] | None, data: Path | None) -> Data:
    """Prepare text as `andrea prepare` does; a signal ends it between two items with the signal's exit code."""
    from andrea.interrupts import Interrupts
    from andrea.progress import Preparing
    from andrea.vocabulary import prepare_text

    with Interrupts() as interrupts, ending_as_asked(interrupts), Preparing() as preparing:
        return prepare_text(what, settings or [], plugins or [], preparing, interrupts, data)


@tokenizer.command()
def train(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="EXPERIMENT|FILES", help="an experiment, or files of text or JSON lines; quickstart"),
    ] = None,
    out: Annotated[Path, typer.Option(help="folder that is made")] = Path("tokenizer"),
    plugin: Plugins = None,
    set_: Settings = None,
    data_folder: DataFolder = None,
    json_: AsJson = False,
) -> None:
    """Train a tokenizer on text in the proportions of the experiment's mix, exactly as a run of it would."""
    from andrea.vocabulary import copy_tokenizer

    if out.exists():
        raise AndreaError(f"{out} exists already", "name another folder with --out")
    data = _prepare(what or [], set_, plugin, data_folder)
    copy_tokenizer(data, out)
    train_row = data.diet().table()[-1]
    value = {
        "tokenizer": str(out),
        "plugin": data.plugin,
        "ids": data.prepared.tokenizer.size,
        "bytes_per_token": train_row["held_out_bytes_per_token"],
        "used": train_row["used"],
        "fingerprint": data.prepared.tokenizer.fingerprint,
        "files": sorted(path.name for path in out.iterdir()),
    }
    if json_:
        print_json(value)
        return
    print(f"{data.plugin} with {value['ids']:,} ids in {out}: {', '.join(value['files'])}")
    print(f"held-out text: {value['bytes_per_token']:.2f} bytes a token; {value['used']:.1%} of the segments are used")


# -- looking at one ----------------------------------------------------------------------------------------------------


@tokenizer.command()
def inspect(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER|RUN", help="folder of a tokenizer, or of a run")],
    text: Annotated[list[str] | None, text_option("--text", help="show how this is cut; repeatable")] = None,
    most: Annotated[int, typer.Option(min=0, help="segments in each list")] = 20,
    json_: AsJson = False,
) -> None:
    """Show the segments that are used most, least and never, and how words are cut."""
    from andrea.diet import cut
    from andrea.vocabulary import is_run, known_uses, open_run_text, open_tokenizer

    name, found = open_tokenizer(folder)
    usages = open_run_text(folder).usages()[0] if is_run(folder) else None
    value: dict[str, Any] = {
        "tokenizer": str(folder),
        "plugin": name,
        "ids": found.size,
        "fingerprint": found.fingerprint,
        "counted in": "the run's training text" if usages else "the sample that it was trained on",
        **_lists(found, known_uses(found, usages), most),
        "cuts": [cut(found, example) for example in text or EXAMPLES],
    }
    if json_:
        print_json(value)
        return
    for key, item in value.items():
        print(f"{key:>12}  {item if isinstance(item, str | int) else ''}".rstrip())
        for entry in item if isinstance(item, list) else ():
            print(" " * 14 + (f"{entry[1]:>12,}  |{entry[0]}|" if isinstance(entry, list) else entry))


def _lists(found: Any, uses: Any, most: int) -> dict[str, Any]:
    """Return the segments that are used most, least, and never; nothing is known of a tokenizer without counts."""
    import numpy as np

    from andrea.diet import segment_flags, show

    segments = np.flatnonzero(segment_flags(found))
    if uses is None:
        return {"segments": len(segments), "counted in": "no text: this tokenizer keeps no counts"}

    def shown(ids: Any) -> list[list[Any]]:
        return [[show(found.decode([i])), int(uses[i])] for i in ids.tolist()]

    order = segments[np.argsort(-uses[segments], kind="stable")]
    used, never = order[uses[order] > 0], order[uses[order] == 0]
    empty = np.array([not found.decode([i]) for i in never.tolist()], dtype=bool)
    return {
        "segments": len(segments),
        "used": len(used),
        "never used": len(never),
        "without text": int(empty.sum()),
        "most used": shown(used[:most]),
        "least used": shown(used[len(used) - min(most, len(used)) :]),
        "never": shown(never[~empty][:most] if len(never) else never),
    }


# -- a diet ------------------------------------------------------------------------------------------------------------


@tokenizer.command()
def diet(
    what: Annotated[
        str | None, typer.Argument(metavar="EXPERIMENT|RUN", help="whose text; quickstart when left out")
    ] = None,
    tokenizer_: Annotated[
        Path | None, typer.Option("--tokenizer", metavar="FOLDER", help="judge this one in place of its own")
    ] = None,
    sizes: Annotated[
        str, text_option("--sizes", help="vocabulary sizes of the sweep; empty leaves it out")
    ] = "512,1024,2048,4096",
    sample_bytes: Annotated[int, typer.Option(min=1, help="text of the sweep, in bytes")] = 8_000_000,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="draw the sweep")] = None,
    plugin: Plugins = None,
    set_: Settings = None,
    data_folder: DataFolder = None,
    json_: AsJson = False,
) -> None:
    """Show which share of the vocabulary the training mix and the held-out text use, and what other sizes would do."""
    from andrea.diet import diet_of_text
    from andrea.vocabulary import is_run, open_run_text, open_tokenizer

    numbers = _read_sizes(sizes)
    if plot is not None and (plot.suffix != ".svg" or not numbers):
        raise AndreaError(f"cannot draw {plot}", "name a file that ends in .svg, and give --sizes to draw")
    judged = open_tokenizer(tokenizer_) if tokenizer_ else None  # a wrong folder is told before text is prepared
    asked = [what] if what else []
    of_run = bool(asked) and is_run(Path(asked[0]))
    data = open_run_text(Path(asked[0])) if of_run else _prepare(asked, set_, plugin, data_folder)
    if judged is None:
        name, result = data.plugin, data.diet()
    else:
        name, result = judged[0], diet_of_text(judged[1], *data.texts(sample_bytes), data.mix)
    rows, waste = result.table(), result.waste()
    points = _sweep(data, numbers, sample_bytes)
    if plot is not None:
        _draw(points, plot)
    if json_:
        from attrs import asdict

        print_json({"tokenizer": name, **waste, "sources": rows, "sweep": [asdict(p) for p in points]})
        return
    _print_diet(name, rows, waste)
    _print_sweep(points)


def _read_sizes(sizes: str) -> list[int]:
    try:
        numbers = [int(size) for size in sizes.split(",") if size.strip()]
    except ValueError:
        numbers = [0]
    if any(not 1 <= number <= LARGEST_SIZE for number in numbers):
        raise AndreaError(
            f"--sizes {sizes} is not a list of sizes from 1 to {LARGEST_SIZE}", "for instance --sizes 512,1024,2048"
        )
    return sorted(set(numbers))


def _sweep(data: Data, sizes: list[int], sample_bytes: int) -> list[Saturation]:
    """Train tokenizers of every size on a sample: the one of the experiment, if it has sizes, and BPE."""
    from andrea.diet import sweep
    from andrea.vocabulary import can_be_sized, maker

    if not sizes:
        return []
    train_text, held_out = data.texts(sample_bytes)
    own = {data.plugin: data.options} if can_be_sized(data.plugin) else {}
    kinds = own if "tokenizer.bpe" in own else {**own, "tokenizer.bpe": {}}
    makers = {name: maker(name, options, train_text) for name, options in kinds.items()}
    return list(sweep(makers, sizes, train_text, held_out, data.mix))


def _print_diet(name: str, rows: list[dict[str, Any]], waste: dict[str, Any]) -> None:
    headings = ("source", "share", "bytes a token", "held out", "single bytes", "used", "used held out")
    print_table(
        headings,
        [
            (
                row["source"],
                f"{row['share']:.1%}",
                f"{row['bytes_per_token']:.2f}",
                f"{row['held_out_bytes_per_token']:.2f}",
                f"{row['single_bytes']:.1%}",
                f"{row['used']:.1%}",
                f"{row['used_held_out']:.1%}",
            )
            for row in rows
        ],
    )
    print(
        f"{name}: of {waste['segments']:,} segments the training mix never uses {waste['never']:,}, "
        f"and {waste['rare']:,} less than once a megabyte"
    )


def _print_sweep(points: list[Saturation]) -> None:
    if not points:
        return
    print("\nOther sizes, trained on a sample in the proportions of the mix:")
    print_table(
        ("segments", "tokenizer", "used", "used held out", "held-out bytes a token"),
        [
            (f"{p.segments:,}", p.tokenizer, f"{p.used:.1%}", f"{p.used_held_out:.1%}", f"{p.bytes_per_token:.3f}")
            for p in points
        ],
    )


def _draw(points: list[Saturation], path: Path) -> None:
    from andrea.chart import draw_shares
    from andrea.tokenfile import write_whole

    lines = {}
    for name in dict.fromkeys(point.tokenizer for point in points):
        own = [point for point in points if point.tokenizer == name]
        short = name.removeprefix("tokenizer.")
        lines[f"{short}, training mix"] = [(point.segments, point.used) for point in own]
        lines[f"{short}, held out"] = [(point.segments, point.used_held_out) for point in own]
    try:
        write_whole(path, draw_shares("Share of the segments that text uses", "segments", lines).encode())
    except OSError as error:
        raise AndreaError(f"cannot write {path}: {error.strerror or error}", "name another file with --plot") from error
