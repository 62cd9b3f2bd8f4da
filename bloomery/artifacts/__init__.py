"""Stages, manifests, the store, claims, refs, lineage. Nothing here knows how a stage computes."""
