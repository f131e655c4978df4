"""One run: a recipe in, a trained network out, resumable at any moment."""
