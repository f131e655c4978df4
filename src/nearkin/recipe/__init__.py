"""Everything about a run as typed text: TOML, ``--set`` and what the papers used."""
