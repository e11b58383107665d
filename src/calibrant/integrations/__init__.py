"""Thin adapters for other people's training loops: `integrations.lightning` and `integrations.transformers`.

Nothing is imported here: each module needs its own framework, and says how to install it where it is missing.
"""
