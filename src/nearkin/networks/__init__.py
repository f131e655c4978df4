"""Image in, embedding out: a backbone, a pooling and a head, with the preprocessing of its weights."""
