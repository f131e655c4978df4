"""Published recipes, as data: the thesis's terms, and those of the papers whose code or text gives them."""
