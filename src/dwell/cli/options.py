"""Arguments and options that more than one command has, each with its one help text."""

import sys
from typing import Annotated

import typer

TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)
]
ReceiptsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RECEIPT",
        help="Receipts that take printed, or - to read one a line from standard input.",
        show_default=False,
    ),
]
DelayOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPAN",
        help="How long from now: 30m, 1h30m, 250ms, or a number of seconds.",
        show_default=False,
    ),
]
DueOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="When: ISO 8601 with a zone (2030-01-31T09:00:00Z), or epoch milliseconds.",
        show_default=False,
    ),
]
ShiftOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPAN",
        help="How much later than each would be due: 30m; or earlier: -30m. Without ids.",
        show_default=False,
    ),
]
LeaseOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPAN",
        help="How long the taker holds it. By default the message's or topic's lease.",
        show_default=False,
    ),
]
WHERE_HELP = "Only messages with a JSON body that matches this JMESPath expression."
#: Nothing is counted beyond the largest number of the machine.
LimitOption = Annotated[
    int, typer.Option("--limit", min=1, max=sys.maxsize, metavar="N", help="How many at most.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All of them, whatever the limit.")]
