"""Limits: all numbers that make the embedded store switch to another path.

They are here, and not next to their users, so that a test can set them small: a test of a hundred
messages never enters a path that starts at 65,536 entries.
"""

from dataclasses import dataclass

from dwell.message import MAX_BATCH_BYTES


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one open store; none of them is part of a format.

    ``deal_at``: new entries that a wheel gathers before it sorts them into minutes.
    ``wheel_runs``: sorted runs that a wheel has before it merges the smallest.
    ``spare_entries``: outdated entries that ready runs or a wheel may hold.
    ``spare_parked``: outdated entries that an ordered topic may hold beside its parked messages,
    and about how many are looked at before other tasks run.
    ``small_chunk``: entries of a ready run's chunk that is still joined with its neighbour.
    ``sweep_every``: ticks between two searches for outdated entries.
    ``most_ended``: leases or messages that one record ends.
    ``few_ids``: ids up to which their index has a lower load.
    ``index_slots``: slots that an index has at least, a power of two.
    ``index_step``: slots that move at a time when an index has grown.
    ``idle_names``: unused topics and owners that are kept; ``idle_step``: topics that one search
    for unused ones looks at.
    ``block_events``, ``block_parts``: events, and verbs, that make a block of the event log.
    ``replayed_parts``: verbs whose events a replay gathers before it writes them.
    ``coarse_events``: events a verb above which a block is written in a thread.
    ``event_file_bytes``: size that makes the event log start a new file.
    ``large_frame_bytes``: size of a journal frame that makes the next verb start a new frame.
    ``snapshot_rows``: rows that a snapshot copies before other tasks run.
    ``snapshot_records``: records after which a snapshot is made, even if they are small, but not
    within ``snapshot_every_ms`` of the last.
    ``room_rows``: new messages after which the room for their snapshot is checked.
    ``timed_rows``: messages that fall due, or whose leases end, before other tasks run;
    ``expired_rows``: messages that expire, each of which becomes a dead letter, before they do.
    ``loaded_rows``: rows of a near minute that are sorted before other tasks run.
    ``merged_rows``: rows in a run of ready messages that no longer grows by merging.
    ``scanned_rows``: rows that a scan looks at together.
    ``paused_rows``: rows that a scan looks at before other tasks run, a multiple of
    ``scanned_rows``.
    ``swept_rows``: rows that a sweep looks at in one call, or a count before other tasks run.
    ``few_ready``: ready messages of a topic up to which they are counted without a pass over all
    rows.
    ``cleared_rows``: messages that a clear cancels in one call.
    ``keyed_rows``: rows whose keys are read before other tasks run, when keys begin to matter.
    ``formed_rows``: ready messages that are placed again before other tasks run, when settings
    change.
    ``passed_rows``: ready messages that one take skips because others of their keys are taken.
    ``taken_topics``: topics of which one take gives messages, at most.
    ``calls``, ``calls_ms``: messages of requests whose results are kept for a repeat, and how long
    they are kept; ``call_block`` of them are sorted and dropped together.
    ``errors_bytes``: size of the errors in a record of released messages, which may have one each;
    together with the longest error they must fit the record's meta, 64 KiB.
    ``copy_bytes``: blobs that are copied forward at a time.
    ``recent_bytes``: bodies that are cached.
    ``answer_bytes``: bodies in an answer, unless it is a single message.
    ``scratch_rows``: rows from which on an array lies in a scratch file, if there is a budget of
    memory; ``scratch_step``: rows by which it grows there.
    ``memory_bytes``: the smallest budget of memory.
    ``tended_s``: seconds between two looks at the memory that the scratch files take.
    ``most_rows``: messages that a store can hold, because a number has 28 bits for its row.
    """

    deal_at: int = 65_536
    wheel_runs: int = 12
    spare_entries: int = 65_536
    spare_parked: int = 4_096
    small_chunk: int = 4_096
    sweep_every: int = 64
    most_ended: int = 1 << 20
    few_ids: int = 1 << 18
    index_slots: int = 1_024
    index_step: int = 1 << 14
    idle_names: int = 1_024
    idle_step: int = 1 << 14
    block_events: int = 16_384
    block_parts: int = 256
    replayed_parts: int = 4_096
    coarse_events: int = 500
    event_file_bytes: int = 32 * 1024 * 1024
    large_frame_bytes: int = 1024 * 1024
    snapshot_rows: int = 1 << 14
    snapshot_records: int = 2_000
    snapshot_every_ms: int = 5_000
    room_rows: int = 1_024
    scanned_rows: int = 1 << 16
    paused_rows: int = 1 << 18
    swept_rows: int = 1 << 18
    few_ready: int = 1 << 14
    timed_rows: int = 1 << 14
    expired_rows: int = 1 << 12
    loaded_rows: int = 1 << 16
    merged_rows: int = 1 << 16
    cleared_rows: int = 1 << 13
    keyed_rows: int = 1 << 13
    formed_rows: int = 1 << 11
    passed_rows: int = 1 << 14
    taken_topics: int = 1000
    calls: int = 1 << 20
    calls_ms: int = 60_000
    call_block: int = 1 << 14
    errors_bytes: int = 40_000
    copy_bytes: int = 1 << 20
    recent_bytes: int = 32 * 1024 * 1024
    answer_bytes: int = MAX_BATCH_BYTES
    scratch_rows: int = 1 << 17
    scratch_step: int = 1 << 15
    memory_bytes: int = 16 * 1024 * 1024
    tended_s: float = 0.002
    most_rows: int = 1 << 28


LIMITS = Limits()
