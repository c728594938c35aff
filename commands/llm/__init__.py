"""Commands that answer for services of language models."""

from __future__ import annotations

import typer

from ..lazy_group import PlainCommand
from . import calibrate, fleet, plan, plan_table, predict, steps

app = typer.Typer(
    help="Services of language models: latency, throughput, power, energy and cost.",
    no_args_is_help=True,
    add_completion=False,
)
app.command("predict", cls=PlainCommand)(predict.predict)
app.command("plan", cls=PlainCommand)(plan.plan)
app.command("plan-table", cls=PlainCommand)(plan_table.plan_table)
app.command("fleet", cls=PlainCommand)(fleet.fleet)
app.command("steps", cls=PlainCommand)(steps.steps)
app.command("calibrate", cls=PlainCommand)(calibrate.calibrate)
