"""`penstock`: the commands, and what happens when one fails."""

import sys
from typing import Annotated

import typer

import penstock
from penstock.cli.bench import bench_command
from penstock.cli.chat import chat_command
from penstock.cli.convert import convert_command
from penstock.cli.doctor import doctor_command
from penstock.cli.inspect import inspect_command
from penstock.cli.launch import launch_command
from penstock.cli.pack import pack_command
from penstock.cli.plan import plan_command
from penstock.cli.run import run_command
from penstock.cli.serve import serve_command
from penstock.cli.synth import synth_command
from penstock.cli.trace import trace_app
from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    help="DeepSeek-V4 on the machine you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version  # its callback has acted


app.command("run")(run_command)
app.command("chat")(chat_command)
app.command("serve")(serve_command)
app.command("launch")(launch_command)
app.command("plan")(plan_command)
app.command("inspect")(inspect_command)
app.command("bench")(bench_command)
app.command("doctor")(doctor_command)
app.command("convert")(convert_command)
app.command("pack")(pack_command)
app.command("synth")(synth_command)
app.add_typer(trace_app, name="trace")


def main() -> None:
    """Entry point: an expected failure is one line on stderr and exit status 1, never a traceback."""
    try:
        app()
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away, e.g. `penstock inspect … | head`
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
