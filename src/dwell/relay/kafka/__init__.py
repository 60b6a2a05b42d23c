"""Kafka as a source and as a sink of relays. Needs the extra ``kafka``."""
