"""Spark, the real one; in a whole run at low priority, beside all other tests."""

#: How long what is under way may take, in seconds: it only ends what hangs.
PATIENCE_S = 300
