"""From Python, in a notebook or a script: train a run, open one, look at it, write with it.

``andrea.train`` and ``andrea.Run.open`` lead here; importing andrea loads none of this.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from html import escape
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from andrea.assembly import open_run
from andrea.checkpoint import complete_steps
from andrea.columns import Columns, evaluations_of, pulls_of, samples_of, smooth, steps_of
from andrea.config import RunConfig, from_json
from andrea.engine import GenerateOptions
from andrea.errors import AndreaError
from andrea.export import export
from andrea.export.portable import Portable
from andrea.interrupts import Interrupts
from andrea.journal import read_journal
from andrea.planning import Mode, Request, newest_run, plan
from andrea.progress import Preparing, print_line
from andrea.strict_json import read_json, to_json
from andrea.trained import Model, evaluate_run, find_model, open_model
from andrea.types import Evaluation

WIDTH, HEIGHT = 420, 90  # of the small curve in a notebook


class OpenRun:
    """The folder of a run, finished or still training: what was read is read again when it has grown.

    Parameters
    ----------
    folder
        Of the run.

    Attributes
    ----------
    folder, config
        Where it lives, and its resolved configuration.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / "config.json").is_file():
            raise AndreaError(f"{folder} holds no run", "andrea.train() begins one; andrea.Run.open() takes the newest")
        self.folder = folder
        self.config: RunConfig = from_json(read_json(folder / "config.json"), str(folder / "config.json"))
        self._seen: tuple[int, int] | None = None
        self._lines: list[dict[str, Any]] = []
        self._models: dict[tuple[int, str], Model] = {}

    @property
    def name(self) -> str:
        """The model's name."""
        return self.config.name

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of what it is trained on."""
        return tuple(source.name for source in self.config.sources)

    @property
    def checkpoints(self) -> list[int]:
        """Steps of the checkpoints that are whole."""
        return complete_steps(self.folder / "checkpoints")

    @property
    def reasons(self) -> dict[str, str]:
        """Why it ended, by plugin; empty while it trains or when a signal ended it."""
        lines = self.lines
        return dict(lines[-1]["reasons"]) if lines and lines[-1]["kind"] == "stop" else {}

    # -- what happened -------------------------------------------------------------------------------------------------

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The journal as it is: one object for each line."""
        path = self.folder / "journal.jsonl"
        if not path.exists():
            return []
        stat = path.stat()
        if self._seen != (stat.st_size, stat.st_mtime_ns):
            try:
                self._lines = list(read_journal(path))
            except ValueError as error:
                raise AndreaError(f"{path} is damaged: {error}", "put the file back") from None
            self._seen = (stat.st_size, stat.st_mtime_ns)
        return self._lines

    @property
    def steps(self) -> Columns:
        """A row for each step: see `andrea.columns.steps_of`."""
        return steps_of(self.lines)

    @property
    def pulls(self) -> Columns:
        """A row for each batch that was drawn: see `andrea.columns.pulls_of`."""
        return pulls_of(self.lines, self.sources)

    @property
    def evaluations(self) -> Columns:
        """A row for each source of each evaluation: see `andrea.columns.evaluations_of`."""
        return evaluations_of(self.lines)

    @property
    def samples(self) -> Columns:
        """A row for each text that was drawn while it trained: step, loss, text."""
        return samples_of(self.lines)

    # -- what it can do ------------------------------------------------------------------------------------------------

    def model(self, step: int | None = None, device: str = "auto") -> Model:
        """Return the model of a checkpoint, the newest by default; one that was opened before stays open."""
        steps = self.checkpoints
        if not steps:
            raise AndreaError(f"{self.folder} has no checkpoint yet", "it writes one at the end, or at SIGUSR1")
        key = (steps[-1] if step is None else step, device)
        if key not in self._models:
            for model in self._models.values():
                model.engine.close()
            checkpoint = self.folder / "checkpoints" / f"step_{key[0]:06d}"
            self._models = {key: open_model(self.folder, checkpoint, device, lambda line: None)}
        return self._models[key]

    def write(
        self,
        prompt: str = "",
        tokens: int = 200,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 0.95,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop: Sequence[str] = (),
        step: int | None = None,
        device: str = "auto",
    ) -> str:
        """Return what the model adds to a prompt, as ``andrea sample`` does."""
        model = self.model(step, device)
        options = GenerateOptions(tokens, temperature, top_k, top_p, repetition_penalty, seed, (model.tokenizer.bos,))
        return model.write([prompt], options, stop)[0].text

    def evaluate(self, rows: int = 0, step: int | None = None, device: str = "auto") -> Evaluation:
        """Return the held-out loss and bits per byte of every source, as ``andrea evaluate`` does."""
        checkpoint = None if step is None else Path(f"step_{step:06d}")
        return evaluate_run(self.folder, checkpoint, rows, device, lambda line: None)[0]

    def export(self, form: str, out: str | Path, dtype: str = "float32") -> Path:
        """Write the model for other programs, as ``andrea export`` does, and return where."""
        return export(Portable.of(find_model(self.folder, None, lambda line: None)), form, Path(out), dtype)

    # -- how it looks --------------------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, str]:
        steps, model = self.steps, self.config.model
        facts = {
            "run": str(self.folder),
            "model": f"{model.n_layer} layers, width {model.d_model}, {model.n_head} heads, context {model.context}",
            "sources": ", ".join(self.sources),
            "steps": f"{steps.rows:,} of a schedule of {self.config.schedule.steps:,}",
        }
        if steps.rows:
            facts["loss"] = f"{smooth(steps['loss'])[-1]:.4f} (smoothed)"
        evaluations = self.evaluations
        if evaluations.rows:
            last = evaluations.where(step=evaluations["step"][-1])
            mean = float(last["bits_per_byte"].mean())
            facts["held out"] = f"{mean:.4f} bits per byte after {last['step'][0]:,} steps, mean over sources"
        facts["checkpoints"] = ", ".join(f"{step:,}" for step in self.checkpoints) or "none yet"
        if self.reasons:
            facts["ended"] = "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items())
        return facts

    def __repr__(self) -> str:
        return "\n".join(f"{name:>12}  {fact}" for name, fact in self._facts().items())

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(fact)}</td></tr>" for name, fact in self._facts().items()
        )
        return f"<table>{rows}</table>{draw_curve(smooth(self.steps['loss']))}"


def open_folder(path: str | Path | None = None) -> OpenRun:
    """Open a run.

    Parameters
    ----------
    path
        Its folder; the newest in ``runs/`` when None.

    Raises
    ------
    AndreaError
        When there is none.
    """
    return OpenRun(newest_run('andrea.Run.open("FOLDER")') if path is None else Path(path))


def draw_curve(values: Any) -> str:
    """Return a small curve of numbers as SVG, nothing when there are none: 200 points at most."""
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if finite.size < 2:
        return ""
    shown = finite[np.linspace(0, finite.size - 1, min(finite.size, 200)).astype(int)]
    low, high = float(shown.min()), float(shown.max())
    heights = HEIGHT - (shown - low) / ((high - low) or 1.0) * (HEIGHT - 4) - 2
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(np.linspace(2, WIDTH - 2, shown.size), heights, strict=True))
    title = f"smoothed loss from {finite[0]:.4f} to {finite[-1]:.4f}"
    return (
        f'<svg role="img" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"><title>{title}</title>'
        f'<polyline points="{points}" fill="none" stroke="#0072b2" stroke-width="2"/></svg>'
    )


# -- training ----------------------------------------------------------------------------------------------------------


def train(
    config: str | Path | Mapping[str, Any] | RunConfig = "quickstart",
    *,
    out: str | Path | None = None,
    steps: int | None = None,
    seed: int | None = None,
    plugins: Sequence[str] = (),
    without: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    resume: bool = False,
) -> OpenRun:
    """Train a model, as ``andrea run`` does, and return the run.

    Parameters
    ----------
    config
        An experiment: a bundled name, the path of a JSON file, or its content. A resume takes the run's own.
    out
        Folder of the run; ``runs/NAME-NNN`` when None.
    steps
        In all; those of the schedule when None.
    seed, plugins, without, device
        As for ``andrea run``.
    settings
        Keys to change, for instance ``{"schedule.peak": 1e-3}``.
    resume
        Go on with the run in `out`, or the newest.

    Notes
    -----
    In a notebook ``log.notebook`` shows progress in the place of ``log.console``. Interrupting the cell ends the run
    after its step with a checkpoint, from which ``resume=True`` goes on.

    Raises
    ------
    AndreaError
        On anything that cannot be done as asked.
    """
    with tempfile.TemporaryDirectory() as folder:
        request = Request(
            mode=Mode.RESUME if resume else Mode.NEW,
            experiment=None if resume else _experiment(config, Path(folder)),
            plugins=tuple(plugins),
            without=tuple(without),
            settings=tuple(f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()),
            steps=steps,
            seed=seed,
            device=device,
            out=None if out is None else Path(out),
        )
        if in_notebook() and "log.console" not in request.plugins:
            request = attrs.evolve(
                request, plugins=(*request.plugins, "log.notebook"), without=(*request.without, "log.console")
            )
        planned = plan(request, print_line)
    if planned.done:
        return OpenRun(planned.folder)
    interrupts = Interrupts()
    with interrupts if threading.current_thread() is threading.main_thread() else nullcontext():
        with Preparing() as preparing:
            loop = open_run(planned, print_line, preparing, interrupts)
        try:
            loop.run()
        finally:
            loop.engine.close()
    assert loop.folder is not None
    return OpenRun(loop.folder)


def _experiment(config: str | Path | Mapping[str, Any] | RunConfig, folder: Path) -> str:
    """Return the name or path of an experiment, written into `folder` when it is given as a value."""
    if isinstance(config, (str, Path)):
        return str(config)
    value = to_json(config) if isinstance(config, RunConfig) else config
    name = value.get("name") if isinstance(value, Mapping) else None
    if not isinstance(name, str) or not name:
        raise AndreaError("the experiment has no name", 'give a mapping with keys as in an experiment: {"name": ...}')
    path = folder / f"{Path(name).name}.json"
    try:
        path.write_text(json.dumps(value), encoding="utf-8")
    except (TypeError, ValueError) as error:
        raise AndreaError(
            f"the experiment is not a value of JSON: {error}", "give texts, numbers, lists, mappings"
        ) from None
    return str(path)


def in_notebook() -> bool:
    """Say whether a notebook's kernel runs this."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    shell = get_ipython()
    return shell is not None and hasattr(shell, "kernel")
