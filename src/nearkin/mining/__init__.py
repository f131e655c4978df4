"""Which pairs and triplets of a batch count."""
