"""Many runs: a plan, and who carries it out."""
