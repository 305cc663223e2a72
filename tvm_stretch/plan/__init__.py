"""Plans: which processor runs which operators. Data only: nothing here compiles or runs."""
