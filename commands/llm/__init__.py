"""Commands that answer for services of language models."""

from __future__ import annotations

import typer

from . import calibrate, fleet, plan, plan_table, predict, steps

app = typer.Typer(
    help="Services of language models: latency, throughput, power, energy and cost.",
    no_args_is_help=True,
    add_completion=False,
)
app.command("predict")(predict.predict)
app.command("plan")(plan.plan)
app.command("plan-table")(plan_table.plan_table)
app.command("fleet")(fleet.fleet)
app.command("steps")(steps.steps)
app.command("calibrate")(calibrate.calibrate)
