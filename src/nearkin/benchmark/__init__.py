"""Many runs, one ranking, one report."""
