"""Which images form a batch."""
