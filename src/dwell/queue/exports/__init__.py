"""Exports: messages in all states as a data set of Parquet, written and put."""
