"""How a run is selected and tested, so that its test score means something."""
