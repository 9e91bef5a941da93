"""``holdfast compact``: compact a stored session, or a transcript on standard input, now and whatever its size."""

from __future__ import annotations

import click

from holdfast.cli.files.user_paths import store_option
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.terminal import make_json_option

EXAMPLES = """\
\b
Examples:
  holdfast compact 4d56
  holdfast compact 4d56 --window 64000
  holdfast compact 4d56 --policy pi --json
  holdfast compact --stdin < transcript.json > compacted.json
"""


@click.command("compact", epilog=EXAMPLES)
@click.argument("session", required=False)
@click.option("--stdin", "from_stdin", is_flag=True, help="Compact a plugin's transcript instead; always as JSON.")
@click.option("--policy", default="holdfast", show_default=True, help="The policy that compacts.")
@click.option("--model", help="The model of the next request. [default: the recorded one]")
@click.option("--window", type=IntegerParamType(1), help="Its window in tokens. [default: the model's]")
@store_option
@make_json_option("the outcome")
@click.pass_context
def compact_command(
    context: click.Context,
    session: str | None,
    policy: str,
    model: str | None,
    window: int | None,
    store: str | None,
    *,
    from_stdin: bool,
    as_json: bool,
) -> None:
    """Compact a session now: a summary replaces its older turns.

    SESSION is the beginning of an id. The summary is made from the log, without a model. Nothing is deleted: the
    messages stay in the log, the model can read them back with recall, and holdfast undo shows them all again. If a
    compaction would not make the next request smaller, nothing is written and you are told so. A damaged session is
    repaired first if that loses nothing; otherwise the message names holdfast repair.

    With --stdin nothing is stored. Standard input is the transcript of a coding agent's plugin, {"messages": [{"role",
    "text", "toolUses", "toolResults", "handle"}], "window", "instructions", "isRecorded"}; all but messages and role
    may be missing. The answer is {"messages", "tokensBefore", "tokensAfter", "kept"}: an extract, then the newest
    messages as they came; or all messages as they came, and "why". Wrong input ends with 2 and {"error": {"path",
    "why", "advice"}} on standard error.
    """
    if from_stdin:
        other_options = [name for name in ("session", "policy", "model", "window", "store") if _is_given(context, name)]
        if other_options:
            raise click.UsageError(f"--stdin compacts what is on standard input; leave out {', '.join(other_options)}")
        # Loaded only now, as the other branch is: a plugin's host waits for this process to start.
        from holdfast.cli.compact_standard_input import compact_standard_input

        compact_standard_input()
        return
    if session is None:
        raise click.UsageError(
            "name the session to compact (holdfast ls lists them), or give a transcript with --stdin"
        )
    from holdfast.cli.reports.compact_session import run_stored_compaction

    run_stored_compaction(session, policy, model, window, store, as_json=as_json)


def _is_given(context: click.Context, name: str) -> bool:
    """Return whether the user gave an argument or option, which then does not have its default."""
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
