"""Evaluation: what a checkpoint is worth, for each live checkpoint without an eval."""
