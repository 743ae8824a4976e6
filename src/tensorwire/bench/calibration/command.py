"""`tensorwire plan calibrate`: measures the costs of a step on this machine, and stores them."""

from __future__ import annotations

import click

from tensorwire.bench.frame.variants import parse_protocols
from tensorwire.cli.click_extensions import Number, takes
from tensorwire.cli.options import Output
from tensorwire.laboratory import laboratory
from tensorwire.plugin.tensorflow_install import check_installed


@click.command(
    epilog="""\b
Examples:
  tensorwire plan calibrate
  sudo tensorwire plan calibrate --json this-machine.json   # with links, which require root"""
)
@click.option(
    "--protocols",
    default="grpc,grpc++",
    show_default=True,
    help="Protocols to measure; grpc++ also with fused tensors, and with all exact rewrites.",
)
@click.option(
    "--seconds",
    type=Number(min=0.1, max=60),
    default=1.0,
    show_default=True,
    help="Seconds to observe each of about sixty small jobs.",
)
@takes(Output, "output", "form", "json_path")
def calibrate(protocols: str, seconds: float, output: Output) -> None:
    """Measure the costs of a step on this machine, and store them.

    Runs one worker and one ps, two workers and one, and so many that all cores are busy, for about
    fourteen minutes. Leave the machine idle meanwhile.
    """
    named = parse_protocols(protocols)
    check_installed()
    from tensorwire.plan import calibration_file
    from tensorwire.report import plan as report
    from tensorwire.report import terminal
    from tensorwire.report.progress import ProgressDisplay

    calibration = laboratory("calibration.calibrate")  # which names the extra with scipy
    chosen = [each for each in calibration.CONTENDERS if each.protocol in named]
    with ProgressDisplay("starting", calibration.runs(chosen)) as progress:
        found, _ = calibration.calibrate(seconds, progress, chosen)
    path = calibration_file.keep(found)

    def document() -> str:
        return calibration_file.text(found.to_document()) + "\n"

    output.give(document, lambda: terminal.show([report.section(found, path)]))
