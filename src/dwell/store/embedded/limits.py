"""Limits: every number of the embedded store beyond which it goes another way.

They are here, and not beside what they bound, so that a test can draw them small: a path that
begins at 65,536 entries is one that no test of a hundred messages ever enters.
"""

from dataclasses import dataclass

from dwell.message import MAX_BATCH_BYTES


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for one open store; none of it is part of a format.

    ``deal_at``: entries that a wheel sets down before it deals them out to minutes.
    ``wheel_runs``: sorted runs that a wheel has before it merges the small ones.
    ``spare_entries``: entries that mean nothing which ready runs or a wheel may hold.
    ``small_chunk``: entries of a ready run's chunk that is still joined with its neighbour.
    ``sweep_every``: ticks between two looks at what means nothing any more.
    ``most_ended``: leases or messages that one record ends.
    ``few_ids``: ids up to which their index is kept emptier.
    ``index_slots``: slots that an index has at least, a power of two.
    ``index_step``: slots of an index that has grown which move at a time.
    ``idle_names``: topics and owners that mean nothing which are kept.
    ``block_events``, ``block_parts``: events, and verbs, that make a block of the event log.
    ``replayed_parts``: verbs whose events a start leaves to be written when it is done.
    ``coarse_events``: events a verb from which on a block is written in a thread.
    ``event_file_bytes``: size of a file of the event log before the next is begun.
    ``large_frame_bytes``: how large a frame of the journal gets before the next verb begins one.
    ``snapshot_rows``: rows that a snapshot copies before others go on.
    ``snapshot_records``: records after which a snapshot is made, however small they are; but none
    for that within ``snapshot_every_ms`` of the last.
    ``room_rows``: more messages before the room for their snapshot is looked for.
    ``timed_rows``: messages that fall due, or whose leases or times end, before others go on.
    ``loaded_rows``: rows of a minute that is near which are sorted before others go on.
    ``merged_rows``: rows in a run of ready messages that no longer grows by merging.
    ``scanned_rows``: rows that a scan looks at together.
    ``swept_rows``: rows that a sweep looks at in one call.
    ``cleared_rows``: messages that a clear cancels in one call.
    ``keyed_rows``: rows whose keys are read before others go on, where they begin to matter.
    ``formed_rows``: ready messages that stand anew before others go on, when settings change.
    ``passed_rows``: ready messages that one take passes over, as others of their keys are taken.
    ``taken_topics``: topics of which one take gives messages.
    ``calls``, ``calls_ms``: messages of requests whose results are kept for a repeat, and how long
    they are kept; ``call_block`` of them are sorted and dropped together.
    ``errors_bytes``: errors that a record of released messages has, of which each may have its own;
    with the longest one more they have to fit the record's meta, 64 KiB.
    ``copy_bytes``: blobs that are copied forward at a time.
    ``recent_bytes``: bodies that are kept at hand.
    ``answer_bytes``: bodies that an answer holds, if it is not one message.
    ``most_rows``: messages that a store can hold, as a number has 28 bits for its row.
    """

    deal_at: int = 65_536
    wheel_runs: int = 12
    spare_entries: int = 65_536
    small_chunk: int = 4_096
    sweep_every: int = 64
    most_ended: int = 1 << 20
    few_ids: int = 1 << 18
    index_slots: int = 1_024
    index_step: int = 1 << 14
    idle_names: int = 1_024
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
    swept_rows: int = 1 << 18
    timed_rows: int = 1 << 14
    loaded_rows: int = 1 << 16
    merged_rows: int = 1 << 16
    cleared_rows: int = 1 << 13
    keyed_rows: int = 1 << 13
    formed_rows: int = 1 << 13
    passed_rows: int = 1 << 14
    taken_topics: int = 1000
    calls: int = 1 << 20
    calls_ms: int = 60_000
    call_block: int = 1 << 14
    errors_bytes: int = 40_000
    copy_bytes: int = 1 << 20
    recent_bytes: int = 32 * 1024 * 1024
    answer_bytes: int = MAX_BATCH_BYTES
    most_rows: int = 1 << 28


LIMITS = Limits()
