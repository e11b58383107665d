"""Readers of the formats in which the public sets are distributed."""
