"""Commands that answer for services of language models."""

from __future__ import annotations

import typer

from . import predict

app = typer.Typer(help="Services of language models: latency, throughput, power, energy and cost.", no_args_is_help=True)
app.command("predict")(predict.predict)
