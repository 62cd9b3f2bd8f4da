"""Bloomery: raw corpora to a released foundation model. What the planes share; see docs/architecture.md."""
