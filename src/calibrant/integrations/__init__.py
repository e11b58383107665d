"""Adapters for other people's training loops, trackers and hubs.

`lightning`, `transformers` and `sklearn` for these frameworks; `calibration_module` for calibrators inside torch
networks; `judging` and `evaluate` for any loop; `model_card` for the Hugging Face hub. Nothing is imported here,
because each module needs its own framework. It says how to install a missing one.
"""
