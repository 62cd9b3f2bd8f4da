"""Release: export, signature, policy, promotion."""
