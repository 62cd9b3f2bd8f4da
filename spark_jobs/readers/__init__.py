"""From a file's bytes to records and quarantined ranges: every decoded byte belongs to one of them."""
