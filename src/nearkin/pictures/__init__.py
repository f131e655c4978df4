"""One plotting style, and the pictures of runs, searches and rankings."""
