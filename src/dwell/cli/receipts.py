"""Verbs on taken messages: ``ack``, ``release``, ``touch`` and ``bury``."""

from typing import Annotated

import typer

from dwell.cli.options import LeaseOption, ReceiptsArgument
from dwell.cli.session import session_of
from dwell.message import Result
from dwell.wire.rows import span_of


def ack(
    context: typer.Context,
    receipts: ReceiptsArgument,
    result: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What came of each, kept for who asks for it."),
    ] = None,
) -> None:
    """Report messages as done, and remove them."""
    session_of(context).apply(
        "receipt",
        receipts,
        Result.ACKED,
        lambda queue, chunk: queue.ack(
            chunk, results=None if result is None else [result] * len(chunk)
        ),
    )


def release(
    context: typer.Context,
    receipts: ReceiptsArgument,
    delay: Annotated[
        str, typer.Option(metavar="SPAN", help="How long until they are due again.")
    ] = "0s",
    retry: Annotated[
        bool, typer.Option("--retry", help="Wait for the topic's retry delay instead.")
    ] = False,
    error: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What failed, kept as last_error.", show_default=False),
    ] = None,
) -> None:
    """Requeue messages, to be taken again.

    A message whose attempts are used up is buried.
    """
    span = span_of(delay)
    session_of(context).apply(
        "receipt",
        receipts,
        Result.RELEASED,
        lambda queue, chunk: queue.release(chunk, span, retry=retry, error=error),
    )


def touch(context: typer.Context, receipts: ReceiptsArgument, lease: LeaseOption = None) -> None:
    """Extend the leases of messages, counted from now."""
    span = span_of(lease)
    session_of(context).apply(
        "receipt", receipts, Result.TOUCHED, lambda queue, chunk: queue.touch(chunk, span)
    )


def bury(
    context: typer.Context,
    receipts: ReceiptsArgument,
    reason: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Why, kept as last_error.", show_default=False),
    ] = None,
) -> None:
    """Make messages dead, until they are kicked or cancelled."""
    session_of(context).apply(
        "receipt", receipts, Result.BURIED, lambda queue, chunk: queue.bury(chunk, reason)
    )
