"""The outbox of an application as a source of relays. Needs the extra ``outbox``."""
