"""Images with labels, in splits whose classes never meet."""
