"""``andrea trial``: run a trial, and render what its runs came to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from andrea.cli_answers import print_json
from andrea.cli_options import AsJson
from andrea.errors import AndreaError, writing_in


def trial(
    name: Annotated[str, typer.Argument(metavar="TRIAL", help="JSON file or bundled trial: arms, seeds, steps")],
    out: Annotated[Path | None, typer.Option(help="folder of the trial; trials/NAME when left out")] = None,
    data: Annotated[Path | None, typer.Option(help="folder that {data} stands for in the file")] = None,
    device: Annotated[
        list[str] | None, typer.Option("--device", metavar="auto|cpu|cuda[:N]", help="where to compute; repeatable")
    ] = None,
    arm: Annotated[
        list[str] | None, typer.Option(help="run this arm alone, with what it waits for; repeatable")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="run with this seed alone; repeatable")] = None,
    queue: Annotated[str, typer.Option(help="who spreads the runs: here, or that of a package")] = "here",
    report: Annotated[bool, typer.Option("--report", help="run nothing, only render what is done")] = False,
    json_: AsJson = False,
) -> None:
    """Run an experiment under several arms and seeds, go on where it was interrupted, and compare them in one table."""
    from andrea.engine.device import find_device
    from andrea.interrupts import exit_code
    from andrea.progress import print_line
    from andrea.trial import find_trial, jobs_of, part_of, read_trial, write_trial
    from andrea.trial_plot import write_plots
    from andrea.trial_queue import HERE, find_queue
    from andrea.trial_report import to_json, write_report
    from andrea.trial_results import by_arm, read_results, summarise

    file = find_trial(name)
    folder = out or Path("trials") / file.stem
    asked = read_trial(file, data)
    jobs = jobs_of(asked, str(file), folder)
    part = part_of(jobs, arm or [], seed or [])
    failed: list[str] = []
    if not report:
        make, devices = find_queue(queue), device or ["auto"]
        if queue == HERE and not all(job.done for job in part):
            for one in devices:
                find_device(one, lambda line: None)  # of another queue, devices may be those of other machines
        with writing_in(folder):
            write_trial(folder, file, jobs)
        work = make(part, devices, folder / "logs", print_line)
        if stopped_by := work.work():
            raise typer.Exit(exit_code(stopped_by))
        failed = work.failed
    table = by_arm(asked, read_results(jobs, print_line))
    if report and (untested := [job.name for job in jobs if job.unmeasured]):
        lacking = AndreaError(
            f"the test losses of {len(untested)} of {len(jobs)} runs are not measured: {', '.join(untested)}",
            "the same command without --report measures them, and makes no run again",
        )
        if not table:
            raise lacking
        print_line(f"{lacking.message}, so they are in no table\n  {lacking.hint}")
    if not table:
        raise AndreaError(f"no run of {folder} is done", "andrea trial TRIAL without --report makes them")
    summaries = summarise(asked, table)
    with writing_in(folder):
        text = write_report(folder, asked, table, summaries)
        plots = write_plots(folder / "plots", asked, table, summaries)
    print_json(to_json(table, summaries)) if json_ else print(text)
    print_line(f"report: {folder / 'report.md'}" + (f", plots: {folder / 'plots'}" if plots else ""))
    if not plots:
        print_line("no plots: they need matplotlib: pip install 'andrea[plot]'")
    if failed:
        print(f"error: {len(failed)} of {len(part)} runs are not done: {', '.join(failed)}", file=sys.stderr)
        raise typer.Exit(1)
