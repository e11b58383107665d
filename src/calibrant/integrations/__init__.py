"""Thin adapters for other people's training loops: `integrations.lightning` and `integrations.transformers`.

Nothing is imported here, because each module needs its own framework. It says how to install a missing one.
"""
